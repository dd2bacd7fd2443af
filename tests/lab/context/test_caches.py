"""Providers' caches, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from longturn.conversation.item import Item, Kind
from longturn.lab.context.caches import Automatic, Marked, MessageEnds, PrefixCache
from longturn.lab.context.prompts import Chains, Prompt

FIVE_MINUTES, HOUR = 300.0, 3600.0


def item(content: str, tokens: int, kind: Kind = "text", role: str = "user") -> Item:
    return Item(message=0, part=0, role=role, kind=kind, turn=0, tokens=tokens, whole_tokens=tokens, content=content)


def said(content: str, tokens: int) -> Item:
    return item(content, tokens, role="assistant")


class Sent:
    """Requests to one cache, with an answer that takes no time."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.chains = Chains()
        self.latest: Prompt | None = None

    def __call__(
        self, items: Sequence[Item], time: float, *, ttl: float = FIVE_MINUTES, head: int = 0
    ) -> tuple[int, int, int]:
        """Cached, written, and neither."""
        self.latest = self.chains.prompt(items, head, self.latest)
        use = self.cache.serve(self.latest, time, time, ttl)
        return use.cached_total, use.written, use.computed - use.written


def test_a_conversation_is_written_once_and_read_from_then_on() -> None:
    send = Sent(Marked(1024))
    talk = [item("a", 2000)]
    assert send(talk, 0) == (0, 2000, 0)
    talk += [said("b", 100), item("c", 50)]
    assert send(talk, 10) == (2000, 150, 0)
    assert send([*talk, said("d", 7), item("e", 3)], 20) == (2150, 10, 0)


def test_entries_end_when_they_were_not_used_for_their_time() -> None:
    send = Sent(Marked(1024))
    talk = [item("a", 2000)]
    send(talk, 0)
    assert send(talk, 300) == (2000, 0, 0)  # and so it lives until 600
    assert send(talk, 600) == (2000, 0, 0)
    assert send(talk, 901) == (0, 2000, 0)
    assert send(talk, 1000, ttl=HOUR) == (2000, 0, 0)
    assert send(talk, 4600, ttl=HOUR) == (2000, 0, 0)
    assert send(talk, 8201, ttl=HOUR) == (0, 2000, 0)


def test_short_prefixes_are_not_cached() -> None:
    send = Sent(Marked(1024))
    talk = [item("a", 1023)]
    assert send(talk, 0) == (0, 0, 1023)
    assert send(talk, 1) == (0, 0, 1023)
    talk += [said("b", 1), item("c", 1)]
    assert send(talk, 2) == (0, 1025, 0)
    assert send(talk, 3) == (1025, 0, 0)


def test_an_entry_ends_only_where_a_breakpoint_was() -> None:
    send = Sent(Marked(1024))
    send([said("a", 2000), item("x", 1)], 0)
    assert send([said("a", 2000), item("y", 1)], 1) == (0, 2001, 0)


@pytest.mark.parametrize(("between", "found"), [(18, True), (19, False)])
def test_lookback_ends_after_twenty(between: int, found: bool) -> None:
    send = Sent(Marked(1024))
    head = [item("h", 1000, "tools", "system"), item("s", 2000, "system", "system")]
    opening = [*head, item("a", 500)]
    assert send(opening, 0, head=2) == (0, 3500, 0)
    # Three breakpoints: both of the head, the two latest runs of what is not the model's. Neither is "a" any more.
    talk = [*opening, *(said(f"b{n}", 1) for n in range(between)), item("c", 5), said("d", 5), item("e", 5)]
    cached, written, rest = send(talk, 1, head=2)
    assert cached == (3500 if found else 3000)
    assert cached + written == 3500 + between + 15
    assert rest == 0


def test_runs_of_results_are_one_position() -> None:
    send = Sent(Marked(1024))
    opening = [item("a", 2000)]
    send(opening, 0)
    calls = [item(f"call {n}", 1, "call", "assistant") for n in range(30)]
    results = [item(f"result {n}", 1, "result", "tool") for n in range(30)]
    assert send([*opening, *calls, *results], 1) == (2000, 60, 0)


def test_an_edit_loses_what_stands_behind_it_but_not_the_head() -> None:
    send = Sent(Marked(1024))
    head = [item("h", 1500, "tools", "system"), item("s", 500, "system", "system")]
    old = item("old", 900, "result", "tool")
    talk = [*head, item("a", 100), said("b", 10), old, said("c", 10), item("d", 100)]
    send(talk, 0, head=2)
    talk[4] = item("placeholder", 16, "result", "tool")
    assert send(talk, 1, head=2) == (2000, 236, 0)


def test_two_sessions_share_a_head_as_long_as_it_lives() -> None:
    send = Sent(Marked(1024))
    head = item("h", 1500, "tools", "system")
    send([head, item("a", 10)], 0, head=1)
    assert send([head, item("b", 20)], 200, head=1) == (1500, 20, 0)
    assert send([head, item("c", 30)], 501, head=1) == (0, 1530, 0)
    send.cache.keep(send.chains.prompt([head], 1, None), 1)
    assert send([head, item("d", 40)], 9000, head=1) == (1500, 40, 0)


def test_automatic_caches_come_in_steps_and_are_free() -> None:
    send = Sent(Automatic(1024, 128, HOUR))
    talk = [item("a", 1100)]
    assert send(talk, 0) == (0, 0, 1100)
    talk += [said("b", 60), item("c", 50)]
    assert send(talk, 10) == (1024, 0, 186)  # 1,100 shared, in steps of 128
    assert send(talk, 10 + HOUR) == (1152, 0, 58)
    assert send(talk, 11 + 2 * HOUR) == (0, 0, 1210)
    assert send([item("x", 1000), *talk], 11 + 2 * HOUR) == (0, 0, 2210)


def test_an_engine_of_ones_own_caches_all_but_the_last_token() -> None:
    send = Sent(Automatic(1, 1, float("inf"), tier="device"))
    talk = [item("a", 100)]
    assert send(talk, 0) == (0, 0, 100)
    assert send(talk, 1e9) == (99, 0, 1)
    assert send([*talk, item("b", 7)], 2e9) == (100, 0, 7)


def test_newer_openai_models_find_message_ends_only() -> None:
    send = Sent(MessageEnds(1024, 1800.0))
    talk = [item("a", 2000)]
    assert send(talk, 0, ttl=0) == (0, 2000, 0)
    talk += [said("b", 100), item("c", 50)]
    assert send(talk, 1800, ttl=0) == (2000, 150, 0)
    # The last message grew in place: only the end before it is found, and the growth is written with it.
    assert send([*talk, item("more", 10)], 1810, ttl=0) == (2000, 160, 0)
    assert send(talk, 3700, ttl=0) == (0, 2150, 0)
