"""Anthropic's prompt caching through the SDK, over the pages of a real engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message, Usage

from longturn.engine import EngineService
from longturn.explain import limits
from longturn.serve import Keys, create_app, in_background
from tests.serve.conftest import tiny_options

Ask = Callable[..., Message]
numbers = itertools.count()
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.fixture(autouse=True)
def short_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model's context holds no two prefixes of 1,024 tokens."""
    monkeypatch.setitem(limits.MINIMUMS, "anthropic", (("", 100),))


@pytest.fixture(params=["2023-06-01", "2026-10-21"])
def ask(url: str, request: pytest.FixtureRequest) -> Iterator[Ask]:
    headers = {"anthropic-version": request.param}
    with Anthropic(base_url=url, api_key="none", max_retries=0, default_headers=headers) as client:
        yield lambda **more: client.messages.create(**{"model": "tiny", "max_tokens": 1, **more})


def text(length: int, mark: dict | None = None) -> dict[str, Any]:
    """A block that no other test has sent."""
    words = f"{next(numbers)} {time.monotonic_ns()} ".ljust(length, "x")
    return {"type": "text", "text": words, **({"cache_control": mark} if mark else {})}


def user(*blocks: dict) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def counts(usage: Usage) -> tuple[int, int, int]:
    """Read, written for 5 minutes, written for an hour."""
    assert usage.cache_creation is not None
    five, hour = usage.cache_creation.ephemeral_5m_input_tokens, usage.cache_creation.ephemeral_1h_input_tokens
    assert usage.cache_creation_input_tokens == five + hour
    line = usage.longturn
    assert line["logical"] == usage.input_tokens + usage.cache_read_input_tokens + five + hour
    assert usage.cache_read_input_tokens <= sum(line["cached"].values())
    return usage.cache_read_input_tokens, five, hour


def test_a_marked_prefix_is_written_and_then_read(ask: Ask):
    system = [text(200, MARK)]
    read, written, hour = counts(ask(system=system, messages=[user(text(40))]).usage)
    assert (read, hour) == (0, 0)
    assert written > 100
    assert counts(ask(system=system, messages=[user(text(40))]).usage) == (written, 0, 0)


def test_without_marks_nothing_is_read_or_written_by_the_rules(ask: Ask):
    system = [text(300)]
    for _ in range(2):
        answer = ask(system=system, messages=[user(text(20))])
        assert counts(answer.usage) == (0, 0, 0)
    # What the engine reused of its own stays visible.
    assert answer.usage.longturn["cached"]["device"] > 100


def test_marks_with_two_lives_are_counted_apart(ask: Ask):
    system, first = [text(200, HOUR)], text(200, MARK)
    read, five, hour = counts(ask(system=system, messages=[user(first)]).usage)
    assert read == 0
    assert min(five, hour) > 100
    assert counts(ask(system=system, messages=[user(first)]).usage) == (five + hour, 0, 0)
    # Another message: what was written for an hour is read, the rest is written.
    assert counts(ask(system=system, messages=[user(text(200, MARK))]).usage)[0] == hour


def test_a_conversation_reads_what_its_last_request_wrote(ask: Ask):
    messages: list[dict] = []
    kept = 0
    for _ in range(4):
        messages.append(user(text(150)))
        read, written, _hour = counts(ask(messages=messages, cache_control=MARK).usage)
        assert read == kept
        kept = read + written
        messages.append({"role": "assistant", "content": "yes"})


def test_a_short_prefix_is_not_cached_and_nobody_says_so(ask: Ask):
    system = [text(60, MARK)]
    for _ in range(2):
        assert counts(ask(system=system, messages=[user(text(200))]).usage) == (0, 0, 0)


def test_a_mark_looks_back_twenty_positions(ask: Ask):
    start = text(200, MARK)
    written = counts(ask(messages=[user(start)]).usage)[1]
    plain = {**start}
    del plain["cache_control"]
    # The mark's own position is the first: 19 more blocks are in reach, 20 are not.
    reached = [*(text(2) for _ in range(18)), text(20, MARK)]
    assert counts(ask(messages=[user(plain, *reached)]).usage)[0] == written
    beyond = [*(text(2) for _ in range(19)), text(20, MARK)]
    assert counts(ask(messages=[user(plain, *beyond)]).usage)[0] == 0
    # A second mark looks back from where it is.
    beyond[0]["cache_control"] = MARK
    assert counts(ask(messages=[user(plain, *beyond)]).usage)[0] >= written


def test_a_run_of_calls_is_one_position(ask: Ask):
    tool = {"name": "t", "input_schema": {"type": "object"}}
    start = user(text(200, MARK))
    written = counts(ask(messages=[start], tools=[tool]).usage)[1]
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "t", "input": {}} for n in range(12)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "1"} for n in range(12)]
    results[-1] = {**results[-1], "cache_control": MARK}
    del start["content"][0]["cache_control"]
    turns = [start, {"role": "assistant", "content": calls}, user(*results)]
    read, more, _ = counts(ask(messages=turns, tools=[tool]).usage)
    assert read == written
    assert counts(ask(messages=turns, tools=[tool]).usage) == (read + more, 0, 0)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"tool_choice": {"type": "none"}}, "system"),
        ({"thinking": {"type": "adaptive"}}, "system"),
        ({"output_config": {"effort": "low"}}, "system"),
        ({"output_config": {"effort": "high"}}, "messages"),
        ({"tool_choice": {"type": "auto"}}, "messages"),
        ({"max_tokens": 2}, "messages"),
        ({"metadata": {"user_id": "u"}}, "messages"),
        ({"extra_headers": {"anthropic-beta": "novelty-2026-01-01"}}, "system"),
        ({"extra_body": {"speed": "fast"}}, "tools"),
        ({"tools": [{"name": "t", "input_schema": {"type": "object"}, "description": "new"}]}, "nothing"),
    ],
)
def test_what_a_setting_loses(url: str, change: dict, kept: str):
    tools = [{"name": "t", "input_schema": {"type": "object"}, "cache_control": MARK}]
    common = {"tools": tools, "system": [text(200, MARK)], "messages": [user(text(200, MARK))]}
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:

        def asked(**more: object) -> tuple[int, int, int]:
            return counts(client.messages.create(**{"model": "tiny", "max_tokens": 1, **common, **more}).usage)

        written = asked()[1]
        read = asked(**change)[0]
    # The template writes tools and system into one message, so both end together.
    if kept == "nothing":
        assert read == 0
    elif kept == "messages":
        assert read == written
    else:
        assert 100 < read < written


def test_a_warmed_prompt_is_read_by_the_next(ask: Ask):
    system = [text(200, MARK)]
    warmed = ask(max_tokens=0, system=system, messages=[user(text(5))])
    written = counts(warmed.usage)[1]
    assert written > 100
    assert counts(ask(system=system, messages=[user(text(30))]).usage)[0] == written


def test_a_stream_tells_the_counts_at_its_start(url: str):
    system = [text(200, MARK)]
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        written = counts(
            client.messages.create(model="tiny", max_tokens=1, system=system, messages=[user(text(9))]).usage
        )
        with client.messages.stream(model="tiny", max_tokens=3, system=system, messages=[user(text(9))]) as stream:
            events = list(stream)
    start = events[0].message.usage
    assert (start.cache_read_input_tokens, start.cache_creation_input_tokens) == (written[1], 0)
    assert stream.get_final_message().usage.cache_read_input_tokens == written[1]


def test_clients_with_other_keys_read_nothing_of_each_other(service: EngineService):
    body = {"model": "tiny", "max_tokens": 1, "system": [text(200, MARK)], "messages": [user(text(20))]}
    with in_background(create_app(service, Keys(["a", "b"])), service) as url:
        usages = [Anthropic(base_url=url, api_key=key).messages.create(**body).usage for key in "aba"]
    assert [counts(usage)[0] > 0 for usage in usages] == [False, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"messages": [user(*(text(9, MARK) for _ in range(5)))]},
            "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ),
        ({"messages": [user(*(text(9, MARK) for _ in range(4)), text(5))], "cache_control": MARK}, "Found 5"),
        ({"messages": [user({"type": "text", "text": "", "cache_control": MARK})]}, "for empty text blocks"),
        ({"messages": [user(text(9, MARK), text(9, HOUR))]}, "must not come after"),
        ({"messages": [user(text(9, MARK))], "cache_control": HOUR}, "another ttl"),
        ({"messages": [user(text(9, {"type": "ephemeral", "ttl": "2h"}))]}, "ttl"),
        ({"messages": [user(text(9, {"type": "lasting"}))]}, "cache_control"),
    ],
)
def test_marks_that_the_provider_refuses(ask: Ask, change: dict, message: str):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(**change)
    assert message in caught.value.message


def test_the_automatic_mark_needs_no_slot_where_one_is(ask: Ask):
    assert ask(messages=[user(*(text(9, MARK) for _ in range(4)))], cache_control=MARK).id


# -- real pages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(tiny_folder: Path) -> Iterator[tuple[EngineService, Callable[..., Usage]]]:
    """A server whose device holds 1,600 tokens, with nothing below it."""
    service = EngineService.start(tiny_options(tiny_folder, device_tokens=1600, host_bytes=0))
    with in_background(create_app(service), service) as url:
        client = Anthropic(base_url=url, api_key="none", max_retries=0)
        yield service, lambda **more: client.messages.create(**{"model": "tiny", "max_tokens": 1, **more}).usage
    service.check_integrity()
    service.close()


def test_an_hour_keeps_pages_through_pressure_that_evicts_others(crowded):
    _, ask = crowded
    marked, plain, question = [text(400, HOUR)], [text(400)], user(text(20))
    hour = counts(ask(system=marked, messages=[question]))[2]
    ask(system=plain, messages=[question])
    for _ in range(6):
        ask(messages=[user(text(900))])
    assert sum(ask(system=plain, messages=[question]).longturn["cached"].values()) < 100
    assert counts(ask(system=marked, messages=[question])) == (hour, 0, 0)


def test_an_expired_mark_is_evictable_and_is_written_anew(crowded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(limits.LIVES, "1h", 0.2)
    _, ask = crowded
    marked, question = [text(400, HOUR)], user(text(20))
    hour = counts(ask(system=marked, messages=[question]))[2]
    time.sleep(0.25)
    for _ in range(6):
        ask(messages=[user(text(900))])
    again = ask(system=marked, messages=[question])
    assert sum(again.longturn["cached"].values()) < 100
    assert counts(again) == (0, 0, hour)


def test_the_hour_of_a_prefix_outlives_the_minutes_of_what_follows(crowded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(limits.LIVES, "5m", 0.2)
    _, ask = crowded
    system, question = [text(300, HOUR)], text(300, MARK)
    read, five, hour = counts(ask(system=system, messages=[user(question)]))
    assert (read, min(five, hour) > 100) == (0, True)
    # A later request that marks the same text for minutes only takes nothing of its hour.
    short = [{**system[0], "cache_control": MARK}]
    ask(system=short, messages=[user(question)])
    time.sleep(0.25)
    for _ in range(6):
        ask(messages=[user(text(900))])
    assert counts(ask(system=system, messages=[user(question)])) == (hour, five, 0)


def test_an_expired_entry_is_no_hit_though_its_pages_are_there(crowded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(limits.LIVES, "5m", 0.3)
    _, ask = crowded
    marked, question = [text(400, MARK)], user(text(20))
    written = counts(ask(system=marked, messages=[question]))[1]
    for _ in range(3):
        # Every hit lets it live on.
        time.sleep(0.15)
        assert counts(ask(system=marked, messages=[question])) == (written, 0, 0)
    time.sleep(0.4)
    again = ask(system=marked, messages=[question])
    assert counts(again) == (0, written, 0)
    assert sum(again.longturn["cached"].values()) >= written


def test_what_was_evicted_is_not_said_to_be_read(crowded):
    service, ask = crowded
    marked, question = [text(400, MARK)], user(text(20))
    written = counts(ask(system=marked, messages=[question]))[1]
    service.clear_tier("device")
    assert counts(ask(system=marked, messages=[question])) == (0, written, 0)
