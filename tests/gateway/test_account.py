"""From what went through to lines: who continues whom, why a prefix was missed, what it cost."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longturn.gateway.conversations import Conversations
from tests.gateway.desk import FILLER, Desk, chat, counted


def test_what_only_appends_continues_and_misses_nothing() -> None:
    desk = Desk()
    first, _ = desk.tell(chat("Hello, who are you?"), counted(3000))
    second, entry = desk.tell(chat("Hello, who are you?", "A model.", "Go on."), counted(3050, 2944))
    assert second.session == first.session
    assert second.session is not None
    assert second.session.startswith("auto-")
    assert (second.miss, entry.mechanism, entry.lost_tokens, entry.drift) == (None, None, 0, None)
    assert entry.expected == 3000
    assert second.model == "openai:gpt-5.1"


def test_a_clock_is_found_without_any_session_name() -> None:
    desk = Desk()
    first, _ = desk.tell(chat("Hello, who are you?", system=f"It is 12:00:01. {FILLER}"), counted(3000))
    later = chat("Hello, who are you?", "A model.", "Go on.", system=f"It is 12:01:02. {FILLER}")
    second, entry = desk.tell(later, counted(3050))
    assert second.session == first.session
    assert entry.mechanism == "volatile_text"
    assert second.miss == "volatile_text at system[0], byte 10"
    assert entry.lost_tokens == 3000
    # gpt-5.1: 1.25 dollars a million, a tenth of that from the cache.
    assert entry.lost_usd == pytest.approx(3000 * 1.125e-6)
    assert entry.usd == pytest.approx(3050 * 1.25e-6 + 10 * 10e-6)


def test_no_content_is_kept_unless_it_is_asked_for() -> None:
    secret = "Xylophone-7731"
    for content, kept in ((False, False), (True, True)):
        desk = Desk(content=content)
        desk.tell(chat("Hello, who are you?", system=f"{secret} 12:00:01 {FILLER}"), counted(3000))
        line, entry = desk.tell(
            chat("Hello, who are you?", "A.", "Go.", system=f"{secret} 12:00:59 {FILLER}"), counted(3050)
        )
        assert entry.mechanism == "volatile_text"
        assert (secret in repr((line, entry))) is kept


def test_requests_of_other_keys_or_other_talks_are_not_compared() -> None:
    desk = Desk()
    first, _ = desk.tell(chat("Hello, who are you?"), counted(3000))
    other, entry = desk.tell(chat("Hello, who are you?", "A model.", "Go on."), counted(3050), key="other")
    assert entry.expected is None
    talk, entry = desk.tell(chat("What is the capital of France?"), counted(3010))
    assert talk.session != first.session
    assert entry.expected is None
    del other


def test_two_talks_in_turn_are_told_apart() -> None:
    desk = Desk()
    texts = {"a": ["Tell me about lighthouses."], "b": ["Tell me about steam engines."]}
    names: dict[str, set[str | None]] = {"a": set(), "b": set()}
    for turn in range(4):
        for who, said in texts.items():
            cached = 3000 + 100 * (turn - 1) if turn else 0
            line, _ = desk.tell(chat(*said), counted(3000 + 100 * turn, cached))
            names[who].add(line.session)
            assert line.miss is None
            said += [f"Answer {turn} for {who}, at length.", f"Question {turn} about {who}."]
    assert len(names["a"]) == len(names["b"]) == 1
    assert names["a"] != names["b"]


@pytest.mark.parametrize(
    "found",
    [
        {"session": "ses_1"},
        {"metadata": {"user_id": "user_abc_account__session_5f0c"}},
        {"metadata": {"user_id": '{"device_id":"d","session_id":"5f0c"}'}},
        {"session_id": "s"},
    ],
)
def test_names_in_bodies_are_used(found: dict[str, Any]) -> None:
    line, _ = Desk().tell(chat("Hello") | found, counted(3000))
    assert line.session in ("ses_1", "5f0c", "s")


def test_a_title_under_the_same_name_is_not_a_miss() -> None:
    desk = Desk()
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    main = chat("Read a.py, please.", tools=tools)
    desk.tell(main, counted(3000), session="ses_1")
    title = {"model": "gpt-5.1", "messages": [{"role": "system", "content": "Write a title. " * 100}]}
    title["messages"].append({"role": "user", "content": "Title for: Read a.py, please."})
    line, entry = desk.tell(title, counted(500), session="ses_1")
    assert (line.session, line.miss, entry.expected) == ("ses_1", None, None)
    later = chat("Read a.py, please.", "Done.", "Now b.py.", tools=tools)
    line, entry = desk.tell(later, counted(3050, 2944), session="ses_1")
    assert (line.miss, entry.expected) == (None, 3000)


def test_a_title_that_comes_first_is_not_what_the_talk_continues() -> None:
    desk = Desk()
    title = chat("Generate a title for this conversation:", system="Write a title. " * 300)
    title["messages"].append({"role": "user", "content": "Read a.py, please."})
    desk.tell(title, counted(1500), session="ses_1")
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    line, entry = desk.tell(chat("Read a.py, please.", tools=tools), counted(3000), session="ses_1")
    assert (line.session, line.miss, entry.expected) == ("ses_1", None, None)


def test_under_one_name_everything_replaced_is_still_compared() -> None:
    desk = Desk()
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    desk.tell(chat("First words of all.", tools=tools), counted(3000), session="s")
    _, entry = desk.tell(chat("Nothing alike here.", system="New. " * 2000, tools=tools), counted(3000), session="s")
    assert entry.mechanism is not None
    assert entry.lost_tokens == 3000


def test_a_provider_that_reports_less_than_it_should_is_flagged() -> None:
    desk = Desk()
    desk.tell(chat("Hello, who are you?"), counted(3000))
    line, entry = desk.tell(chat("Hello, who are you?", "A model.", "Go on."), counted(3050, 0), wait=20)
    assert line.miss == "routing"
    assert (entry.expected, entry.drift) == (3000, -3000)


def test_a_provider_that_reports_more_than_there_was_is_flagged() -> None:
    desk = Desk()
    desk.tell(chat("Hello, who are you?", system=f"12:00:01 {FILLER}"), counted(3000))
    later = chat("Hello, who are you?", "A.", "Go on.", system=f"12:09:01 {FILLER}")
    _, entry = desk.tell(later, counted(3050, 2944))
    assert entry.expected is not None
    assert entry.drift == 2944 - entry.expected > 1024


def test_errors_and_garbage_have_lines_but_are_nothing_to_compare_with() -> None:
    desk = Desk()
    line, entry = desk.tell(chat("Hello, who are you?"), status=500)
    assert (line.use.logical, entry.status, entry.usd) == (0, 500, None)
    _, entry = desk.tell(chat("Hello, who are you?", "A.", "Go on."), counted(3000))
    assert entry.expected is None
    for garbage in (b"", b"\xff", b"[1, 2]", b'{"messages": 5, "model": {}}', b'{"messages":[{"content":[null,3]}]}'):
        line, entry = desk.tell(garbage, {"prompt_tokens": "many"})
        assert line.use.logical == 0
        assert entry.trouble is not None
        assert line.model


def test_who_leaves_after_the_end_has_the_whole_answer() -> None:
    _, entry = Desk().tell(chat("Hi"), counted(100), outcome="client_left")
    assert entry.outcome == "complete"
    _, entry = Desk().tell(chat("Hi"), counted(100), outcome="client_left", ended=False)
    assert entry.outcome == "client_left"
    _, entry = Desk().tell(chat("Hi"), counted(100), outcome="broken")
    assert entry.outcome == "broken"


def test_usage_that_does_not_add_up_is_said() -> None:
    _, entry = Desk().tell(chat("Hi"), counted(100, 200))
    assert entry.trouble == "the counts of the usage do not add up"


def test_anthropic_writes_for_an_hour_cost_more() -> None:
    body = {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": FILLER, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "messages": [{"role": "user", "content": "Hello"}],
    }
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 3000, "output_tokens": 1}
    split = {"cache_creation": {"ephemeral_1h_input_tokens": 3000, "ephemeral_5m_input_tokens": 0}}
    cheap = Desk("anthropic", "anthropic").tell(body, usage)[1].usd
    dear = Desk("anthropic", "anthropic").tell(body, usage | split)[1].usd
    assert cheap == pytest.approx(float(Decimal("0.000045") + 3000 * Decimal("0.00000375")))
    assert dear == pytest.approx(float(Decimal("0.000045") + 3000 * Decimal("0.000006")))


def test_marks_that_are_missing_cost_what_both_have_in_common() -> None:
    desk = Desk("anthropic", "anthropic")
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-5",
        "system": FILLER,
        "messages": [{"role": "user", "content": "Hello, who are you?"}],
    }
    desk.tell(body, {"input_tokens": 3010, "output_tokens": 5})
    longer = copy.deepcopy(body)
    longer["messages"] += [{"role": "assistant", "content": "A model."}, {"role": "user", "content": "Go on."}]
    _, entry = desk.tell(longer, {"input_tokens": 3050, "output_tokens": 5})
    assert entry.mechanism == "no_marks"
    assert entry.lost_tokens == 3010
    assert entry.lost_usd == pytest.approx(3010 * 2.7e-6)


def test_a_compaction_on_purpose_is_called_so() -> None:
    desk = Desk("anthropic", "anthropic")
    cached = {"type": "ephemeral"}
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": FILLER, "cache_control": cached}],
        "messages": [
            {"role": "user", "content": "Read everything."},
            {"role": "assistant", "content": FILLER},
            {"role": "user", "content": [{"type": "text", "text": "And now?", "cache_control": cached}]},
        ],
    }
    desk.tell(body, {"input_tokens": 10, "cache_creation_input_tokens": 6000, "output_tokens": 5}, session="s")
    short = copy.deepcopy(body)
    short["messages"] = [
        {"role": "user", "content": [{"type": "compaction", "content": "All was read."}]},
        {"role": "user", "content": [{"type": "text", "text": "And then?", "cache_control": cached}]},
    ]
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 3000, "output_tokens": 5}
    _, entry = desk.tell(short, usage, session="s")
    assert (entry.mechanism, entry.intentional) == ("history_rewritten", True)


def test_the_same_beginning_in_two_sessions_is_kept_for_both() -> None:
    desk = Desk()
    for session in ("a", "b"):
        desk.tell(chat("Hello, who are you?"), counted(3000), session=session)
        desk.tell(chat("Hello, who are you?", "A model.", session), counted(3050, 2944), session=session)
    desk.tell(chat("Hello, who are you?"), counted(3000), session="c")
    for session in ("a", "b", "c"):
        _, entry = desk.tell(chat("Hello, who are you?", "A model.", session, "Yes.", "Go on."), session=session)
        assert entry.segments == 6
    assert {past.session for past in desk.keeper.conversations._pasts.values()} == {"a", "b", "c"}


def test_history_that_was_not_seen_is_not_missed() -> None:
    desk = Desk("openai")
    body = {"model": "gpt-5.1", "instructions": FILLER, "input": "Hello", "tools": [{"type": "function", "name": "f"}]}
    usage = {"input_tokens": 3000, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}}
    desk.tell(body, usage, session="s")
    line, entry = desk.tell({**body, "input": "More", "previous_response_id": "resp_1"}, usage, session="s")
    assert (line.session, line.miss, entry.expected) == ("s", None, None)


def test_memory_is_bounded() -> None:
    memory = Conversations(memory=200_000)
    desk = Desk(conversations=memory)
    for number in range(300):
        named = f"s{number % 70}" if number % 2 else None
        desk.tell(chat(f"{number} {'x' * (number * 37 % 4000)}" + str(hash(str(number)) * 99)), session=named)
    assert 1 < len(memory._pasts) < 300
    assert memory._weight == sum(past.weight for past in memory._pasts.values()) <= 200_000
    alive = set(memory._pasts)
    assert set(memory._index.values()) <= alive
    assert {number for numbers in memory._sessions.values() for number in numbers} <= alive


def test_a_talk_that_grows_is_kept_once() -> None:
    desk = Desk()
    said = ["Tell me about lighthouses."]
    for turn in range(30):
        desk.tell(chat(*said), counted(3000 + turn))
        said += [f"Answer {turn}.", f"Question {turn}."]
    assert len(desk.keeper.conversations._pasts) == 1


WORDS = st.sampled_from(["", "a", "user", "system", "text", "tool", "tool_use", "function", "image", "x" * 70])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "parts", "cache_control", "id", "input"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BODIES = st.dictionaries(
    st.sampled_from(
        ["model", "messages", "tools", "system", "input", "instructions", "contents", "metadata", "session", "provider",
         "tool_choice", "generationConfig", "systemInstruction", "prompt_cache_key", "thinking", "cache_control"]
    ),
    VALUES,
    max_size=6,
)  # fmt: skip


@pytest.mark.parametrize("dialect", ["openai", "openai-chat", "anthropic", "gemini"])
@given(bodies=st.lists(BODIES | VALUES, min_size=1, max_size=4), usage=VALUES)
@example(bodies=[{"prompt_cache_key": [None]}, {}, {"cachedContent": {"a": 1}}, {"cachedContent": 2}], usage=None)
@settings(max_examples=150)
def test_nothing_is_too_strange_to_have_a_line(dialect: str, bodies: list[Any], usage: Any) -> None:
    desk = Desk(dialect, None, content=True)
    for body in bodies:
        line, entry = desk.tell(json.dumps(body).encode(), usage if isinstance(usage, dict) else None, session="s")
        assert line.model
        assert entry.request_id == line.request_id
