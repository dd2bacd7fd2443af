"""What a miss has cost: the difference between what was paid and what a hit would have cost."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import pytest

from longturn.explain import Exchange, explain_exchanges
from longturn.explain.money import dollars, lost_usd
from tests.explain.build import MORE, SYSTEM, TURNS, request

MILLION = Decimal(1_000_000)


def clock(provider: str, usage: Any = None, **changes: Any) -> tuple[Exchange, int]:
    """The later of two requests that differ by a clock, and the tokens that this loses."""
    a = request(provider, system=f"{SYSTEM}It is 12:00:01.", **changes)
    b = request(provider, TURNS + MORE, system=f"{SYSTEM}It is 12:00:02.", **changes)
    later = Exchange.read({"request": b, "usage": usage}, provider)
    verdict = explain_exchanges(Exchange.read(a, provider), later)
    assert verdict.mechanism == "volatile_text"
    assert verdict.lost_tokens > 0
    return later, verdict.lost_tokens


@pytest.mark.parametrize(
    ("provider", "model", "paid", "due"),
    [
        # US dollars of a million tokens, as listed: computed (and written, where that is charged), and read.
        ("anthropic", "claude-sonnet-4-5", Decimal("3.75"), Decimal("0.30")),
        ("openai-chat", "gpt-4.1", Decimal("2.00"), Decimal("0.50")),
        ("openai", "gpt-5.2", Decimal("1.75"), Decimal("0.175")),
        ("gemini", "gemini-2.5-flash", Decimal("0.30"), Decimal("0.03")),
    ],
)
def test_listed_prices(provider: str, model: str, paid: Decimal, due: Decimal) -> None:
    later, lost = clock(provider, model=model)
    assert lost_usd(later, lost) == lost * (paid - due) / MILLION


def test_reported_usage_goes_before_estimates() -> None:
    counts = {"input_tokens": 100, "cache_read_input_tokens": 0, "output_tokens": 5}
    written = {"cache_creation_input_tokens": 1900, "cache_creation": {"ephemeral_1h_input_tokens": 1900}}
    hour, _ = clock("anthropic", counts | written)
    assert lost_usd(hour, 1000) == 1000 * (Decimal("6.00") - Decimal("0.30")) / MILLION
    # Without writes what is missed costs the plain price, and no more tokens are lost than were computed.
    plain, _ = clock("anthropic", counts | {"cache_creation_input_tokens": 0})
    assert lost_usd(plain, 1000) == lost_usd(plain, 100) == 100 * (Decimal("3.00") - Decimal("0.30")) / MILLION


def test_an_hour_by_the_marks() -> None:
    a = request("anthropic")
    for block in (a["system"][-1], a["messages"][-1]["content"][-1]):
        block["cache_control"]["ttl"] = "1h"
    assert lost_usd(Exchange.read(a, "anthropic"), 1000) == 1000 * (Decimal("6.00") - Decimal("0.30")) / MILLION


def test_nothing_is_priced_that_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    later, lost = clock("openai-chat", model="our-own-model")
    assert lost_usd(later, lost) is None
    known, lost = clock("openai-chat", model="gpt-4.1")
    assert lost_usd(known, 0) == 0
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert lost_usd(known, lost) is None


def test_dollars() -> None:
    amounts = ["0", "0.00003", "0.0056123", "0.25", "1234.5"]
    assert [dollars(Decimal(a)) for a in amounts] == ["$0.00", "less than $0.0001", "$0.0056", "$0.25", "$1,234.50"]
