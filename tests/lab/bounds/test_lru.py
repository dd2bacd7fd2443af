"""LRU and its curve against a cache that moves one block at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.lab.bounds import Curve, infinite, lru, lru_curve
from longturn.lab.trace.reuse import reuse
from tests.lab.bounds.plain import Listed, Request, answered, chats, hits_of_lru, requests


def test_a_leaf_goes_first() -> None:
    found = reuse(Listed([("", [1, 2, 3]), ("", [1, 2, 3])]))
    assert [lru(found, capacity) for capacity in range(5)] == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 3 / 6])


def test_a_request_longer_than_the_cache_leaves_its_beginning() -> None:
    found = reuse(Listed([("", [7]), ("", [1, 2, 3]), ("", [7]), ("", [1, 9])]))
    assert lru(found, 2) == pytest.approx(1 / 7)


@given(requests, st.integers(0, 30))
def test_lru_is_the_plain_one(listed: list[Request], capacity: int) -> None:
    trace = Listed(listed)
    found = reuse(trace)
    assert lru(found, capacity) == found.hit_ratio(hits_of_lru(trace.paths(), capacity))


@given(requests)
def test_curve_is_lru_at_every_capacity(listed: list[Request]) -> None:
    found = reuse(Listed(listed))
    curve = lru_curve(found)
    ratios = [lru(found, capacity) for capacity in range(60)]
    assert [curve.hit_ratio(capacity) for capacity in range(60)] == ratios
    assert next(capacity for capacity, ratio in enumerate(ratios) if ratio == ratios[-1]) == curve.largest


@given(answered, st.integers(0, 30))
def test_answers_are_touched_after_their_prompts(listed: list[Request], capacity: int) -> None:
    trace = Listed(listed)
    found = reuse(trace, answers=True)
    expected = found.hit_ratio(hits_of_lru(trace.paths(), capacity, trace.paths_with_answers()))
    assert lru(found, capacity) == lru_curve(found).hit_ratio(capacity) == expected
    assert found.accesses == reuse(trace).accesses
    assert infinite(found) == lru(found, 1000) >= infinite(reuse(trace))


def test_conversations() -> None:
    trace = chats(600)
    found, paths = reuse(trace), trace.paths()
    curve = lru_curve(found)
    for capacity in (1, 3, 10, 50, 200, 1000, 3000, 10_000):
        expected = found.hit_ratio(hits_of_lru(paths, capacity))
        assert curve.hit_ratio(capacity) == lru(found, capacity) == expected
    assert curve.hit_ratio(curve.largest) == infinite(found) > curve.hit_ratio(curve.largest - 1)


@pytest.fixture(scope="module")
def curve() -> Curve:
    return lru_curve(reuse(chats(300)))


def test_few_capacities_are_all_shown(curve: Curve) -> None:
    assert curve.points(curve.largest) == [(n, curve.hit_ratio(n)) for n in range(1, curve.largest + 1)]


def test_many_capacities_are_spaced(curve: Curve) -> None:
    points = curve.points(40)
    assert 25 < len(points) <= 40
    assert (points[0][0], points[-1][0]) == (1, curve.largest)
    assert points == [(n, curve.hit_ratio(n)) for n in sorted({capacity for capacity, _ in points})]


def test_nothing_to_cache() -> None:
    for listed in ([], [("", [])], [("", [1, 2])]):
        found = reuse(Listed(listed))
        assert lru_curve(found).points(10) == []
        assert infinite(found) == lru(found, 5) == lru_curve(found).hit_ratio(5) == 0
