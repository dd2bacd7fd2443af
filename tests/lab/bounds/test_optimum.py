"""The optimum against a search through all caches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.lab.bounds import infinite, lru, optimum
from longturn.lab.trace.reuse import reuse
from tests.lab.bounds.plain import Listed, Request, chats, most_hits, requests

small = st.lists(st.tuples(st.just(""), st.lists(st.integers(0, 1), min_size=1, max_size=3)), max_size=7)


def test_bypass() -> None:
    """Keeping 1 beats letting in what comes between, which a cache of one block without bypass cannot."""
    found = reuse(Listed([("", [n]) for n in (1, 2, 1, 3, 1)]))
    assert optimum(found, 1) == pytest.approx(2 / 5)


def test_the_deepest_goes_first() -> None:
    found = reuse(Listed([("", [1, 2, 3]), ("", [5]), ("", [1, 2, 3]), ("", [5])]))
    assert [optimum(found, capacity) for capacity in range(5)] == pytest.approx([0, 1 / 8, 2 / 8, 3 / 8, 4 / 8])


@settings(max_examples=150, deadline=None)
@given(small, st.integers(0, 4))
def test_no_cache_hits_more(listed: list[Request], capacity: int) -> None:
    trace = Listed(listed)
    found = reuse(trace)
    assert optimum(found, capacity) == found.hit_ratio(most_hits(trace.paths(), capacity))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 1), max_size=1)), max_size=6), st.integers(0, 3))
def test_no_cache_of_answers_hits_more(turns: list[tuple[int, list[int]]], capacity: int) -> None:
    """Each prompt goes on after an earlier answer, or from the beginning; no two answers are the same."""
    asked: list[Request] = []
    ends: list[list[int]] = [[]]
    for turn, (earlier, new) in enumerate(turns):
        prompt = ends[earlier % len(ends)] + new
        asked.append(("", prompt, [100 + turn]))
        ends.append([*prompt, 100 + turn])
    trace = Listed(asked)
    found = reuse(trace, answers=True)
    assert optimum(found, capacity) == found.hit_ratio(most_hits(trace.paths(), capacity, trace.paths_with_answers()))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.just(""), st.lists(st.integers(0, 1), max_size=2), st.lists(st.integers(0, 1), max_size=2)),
        max_size=6,
    ),
    st.integers(0, 4),
)
def test_answers_that_repeat_leave_a_bound(listed: list[Request], capacity: int) -> None:
    trace = Listed(listed)
    found = reuse(trace, answers=True)
    most = found.hit_ratio(most_hits(trace.paths(), capacity, trace.paths_with_answers()))
    assert most <= optimum(found, capacity) <= infinite(found)


@given(requests, st.integers(0, 30))
def test_between_lru_and_infinite(listed: list[Request], capacity: int) -> None:
    found = reuse(Listed(listed))
    assert lru(found, capacity) <= optimum(found, capacity) <= infinite(found)
    assert optimum(found, found.unique) == infinite(found)


def test_conversations_leave_room_above_lru() -> None:
    found = reuse(chats(500))
    capacity = found.unique // 50
    assert lru(found, capacity) + 0.05 < optimum(found, capacity) < infinite(found)
