"""Conversations are told apart by their content: what moves is found, and what only looks like it is let be."""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.pytest_plugin.cached_prefix import CachedPrefix
from tests.explain.build import MORE, PROVIDERS, SYSTEM, TURNS, call, request, result, text

PATHS = {
    "openai": "/v1/responses",
    "openai-chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
}
every_provider = pytest.mark.parametrize("provider", PROVIDERS)
HELPER = "You give conversations a title of at most five words. " * 20
FILE = "def parse(lines):\n    return lines[:-1]\n" * 50


def sent(provider: str, *bodies: Any) -> CachedPrefix:
    prefix = CachedPrefix()
    for body in bodies:
        prefix.record(PATHS[provider], json.dumps(body).encode())
    assert len(prefix.requests) == len(bodies)
    return prefix


def moved(provider: str, *bodies: Any) -> list[tuple[str, int, int]]:
    """Mechanism of each break, with the numbers of both requests."""
    breaks = sent(provider, *bodies).breaks
    return [(one.verdict.mechanism, one.earlier.number, one.later.number) for one in breaks]


@every_provider
def test_a_conversation_that_grows(provider: str) -> None:
    steps = [request(provider, (TURNS + MORE)[: n + 1]) for n in range(0, len(TURNS + MORE), 2)]
    assert moved(provider, *steps) == []


@every_provider
def test_what_moves(provider: str) -> None:
    first = request(provider)
    rewritten = copy.deepcopy(TURNS)
    rewritten[2] = ("user", result("[pruned]"))
    for body, mechanism in (
        (request(provider, TURNS + MORE, system=SYSTEM.replace("careful", "quick")), "volatile_text"),
        (request(provider, rewritten + MORE), "history_rewritten"),
        (request(provider, [TURNS[0], ("assistant", *TURNS[1][2:]), *TURNS[2:], *MORE]), "thinking_stripped"),
        (request(provider, TURNS + MORE, model="another"), "routing"),
        (request(provider, [*TURNS[2:], *MORE]), "sliding_window"),
    ):
        assert moved(provider, first, body) == [(mechanism, 1, 2)]


@every_provider
def test_other_conversations_in_between(provider: str) -> None:
    title = request(provider, TURNS[:1], system=HELPER, tools=[])
    reads = [("assistant", call("read", {"path": "a.py", "limit": 40})), ("user", result(FILE))]
    one = [("user", text("Look at the parser, please.")), *reads]
    two = [("user", text("Who wrote this file?")), *reads]
    bodies = [
        request(provider, TURNS[:1]),
        title,
        request(provider, one[:1]),
        request(provider, two[:1]),
        request(provider, one),
        request(provider, TURNS[:3]),
        request(provider, two),
        request(provider, TURNS),
    ]
    assert moved(provider, *bodies) == []
    # The same again from the beginning, with other answers, and a fork of the first.
    again = [TURNS[0], ("assistant", text("Let me see.")), ("user", text("Please do."))]
    fork = [*TURNS[:4], ("user", text("Rather mend the writer."))]
    assert (
        moved(provider, *bodies, request(provider, again[:1]), request(provider, again), request(provider, fork)) == []
    )


@every_provider
def test_a_handover_and_back(provider: str) -> None:
    other = "You only ever write tests, and you write them well. " * 20
    middle = [*TURNS[:1], ("assistant", text("I hand over.")), ("user", text("Please go on."))]
    last = [*middle, ("assistant", text("Here are tests.")), ("user", text("Thank you."))]
    assert (
        moved(
            provider,
            request(provider, TURNS[:1]),
            request(provider, middle, system=other),
            request(provider, last),
        )
        == []
    )


@every_provider
def test_a_compaction_is_a_move_that_wants_a_reason(provider: str) -> None:
    said = [("user", text("Summary of the conversation so far: the parser is mended.")), *MORE[1:]]
    worded = [("user", text("What has been done: the parser is mended.")), *MORE[1:]]
    assert moved(provider, request(provider), request(provider, said)) == [("history_rewritten", 1, 2)]
    # Without the word it could be another conversation; a test that expects it knows better.
    assert moved(provider, request(provider), request(provider, worded)) == []
    prefix = sent(provider, request(provider))
    with prefix.expect_break("compaction"):
        prefix.record(PATHS[provider], json.dumps(request(provider, worded)).encode())
    prefix.check()
    assert len(prefix.breaks) == 1


def test_marks_are_wanted_only_where_there_were_some() -> None:
    bare = [request("anthropic", turns, mark=False) for turns in (TURNS, TURNS + MORE)]
    assert moved("anthropic", *bare) == []
    assert moved("anthropic", request("anthropic"), bare[1]) == [("no_marks", 1, 2)]


def test_from_many_threads() -> None:
    prefix = CachedPrefix()
    body = json.dumps(request("openai-chat")).encode()
    threads = [threading.Thread(target=prefix.record, args=(PATHS["openai-chat"], body)) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.number for one in prefix.requests] == list(range(1, 33))


@every_provider
@given(data=st.data())
def test_whatever_is_sent_is_only_looked_at(provider: str, data: st.DataObject) -> None:
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
    names = st.sampled_from(["messages", "input", "contents", "system", "tools", "model", "request", "usage", "time"])
    bodies = data.draw(st.lists(st.dictionaries(names, junk, max_size=5), min_size=1, max_size=4))
    prefix = CachedPrefix()
    for body in bodies:
        prefix.record(PATHS[provider], json.dumps(body).encode())
    key = {"openai": "input", "gemini": "contents"}.get(provider, "messages")
    assert len(prefix.requests) == sum(key in body for body in bodies)
    assert len(prefix.breaks) < max(len(prefix.requests), 1)
