"""Window and spent are two meters, and neither ever shows the other's figure."""

from __future__ import annotations

from decimal import Decimal

import pytest

from longturn.conversation.meters import Spent, WindowMeter, breakdown
from longturn.conversation.parts import Reasoning, Summary, Text, ToolCall, Tools
from longturn.conversation.view.fold import fold
from longturn.conversation.window import Window
from longturn.ledger import NO_USE, RequestLine, TokenUse
from longturn.ledger.prices import price_of, priced_name
from tests.conversation.talk import Talk, tool


def line(model: str = "tiny", purpose: str = "turn", use: TokenUse | None = None) -> RequestLine:
    use = use or TokenUse(1_000_000, {"provider": 600_000}, 400_000, output=100_000, written=200_000)
    return RequestLine("r", "s", model, 1.0, use, purpose=purpose)


def talk() -> Talk:
    made = Talk("system " * 50, tools=("read", "calc__add", "calc__sub"))
    made.user("user " * 40)
    made.say("assistant", Reasoning("hm " * 30), Text("yes " * 20), ToolCall("c", "read", "{}"))
    made.result("c", "line " * 200)
    made.say("user", Summary("so far " * 10, 0, 1))
    return made


def test_the_breakdown_says_what_fills_the_window():
    parts = breakdown(fold(talk().entries))
    named = ["system", "tools: built in", "tools: calc", "user", "reasoning", "assistant", "tool results", "summary"]
    assert sorted(parts) == sorted(named)
    assert parts["tool results"] == max(parts.values())
    assert parts["tools: calc"] > parts["tools: built in"]
    assert next(iter(parts)) == "tool results"


def test_an_estimate_learns_from_what_was_reported():
    meter = WindowMeter(Window(10_000, 1_000))
    made = talk()
    sent = fold(made.entries)
    first = meter.expected(sent)
    assert first == sent.tokens
    made.assistant("fine")
    answered = fold(made.entries)
    meter.learn(sent.items, len(answered.items), 0, TokenUse(2 * first, {}, 2 * first, output=50))
    assert meter.error == -0.5
    assert meter.expected(answered) == meter.reported == 2 * first + 50
    made.user("word " * 400)
    grown = fold(made.entries)
    new = grown.tokens - answered.tokens
    assert meter.expected(grown) == 2 * first + 50 + 2 * new
    meter.forget()
    assert meter.expected(grown) == 2 * grown.tokens
    assert meter.reading(grown).reported is None


def test_a_reading_of_the_usable_and_of_the_raw_window():
    meter = WindowMeter(Window(10_000, 2_000))
    view = fold(talk().entries)
    meter.learn(view.items, len(view.items), 0, TokenUse(4_000, {}, 4_000))
    reading = meter.reading(view)
    assert (reading.expected, reading.usable, reading.raw) == (4_000, 0.5, 0.4)
    assert sum(reading.parts.values()) == pytest.approx(4_000, abs=len(reading.parts))
    assert reading.error is not None


def test_new_tools_wait_for_their_epoch():
    made = talk()
    before = breakdown(fold(made.entries))
    made.say("system", Tools((tool("other__x"),)))
    assert breakdown(fold(made.entries)) == before


def test_everything_that_was_asked_is_spent():
    other = TokenUse(500, {}, 500, output=5)
    spent = Spent.of([line(), line(purpose="summary", use=other), line(use=NO_USE)])
    assert spent.use == line().use + other
    assert spent.purposes == {"turn": line().use, "summary": other}
    assert (spent.requests, spent.uncounted) == (3, 1)
    assert spent.money() == (0, 2)


def test_money_follows_the_convention_of_each_count():
    # Per million: input 3, read 0.3, write 3.75, output 15; 0.2 million are neither read nor written.
    expected = Decimal("0.6") + Decimal("0.18") + Decimal("0.75") + Decimal("1.5")
    assert price_of(line(priced_name("anthropic", "claude-sonnet-4-5"), use=small())) == expected / 10
    assert price_of(line(priced_name("openai", "no-such-model"))) is None
    assert price_of(line(priced_name(None, "gpt-5.1"))) is None
    spent = Spent.of([line("anthropic:claude-sonnet-4-5", use=small()), line("tiny")])
    assert spent.money() == (expected / 10, 1)


def small() -> TokenUse:
    return TokenUse(100_000, {"provider": 60_000}, 40_000, output=10_000, written=20_000)
