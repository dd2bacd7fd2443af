"""Slots are handed out once, in runs as long as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.cache import Run, Runs
from longturn.cache.slots import SlotPool
from longturn.errors import CacheCorruption


def slots(runs: Runs) -> list[int]:
    return [slot for run in runs for slot in range(run.start, run.stop)]


pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8)


def runs_of(drawn: list[tuple[int, int]]) -> Runs:
    return Runs(Run(start, start + n) for start, n in drawn)


@given(pairs)
def test_neighbouring_runs_are_merged(drawn: list[tuple[int, int]]) -> None:
    runs = runs_of(drawn)
    assert slots(runs) == [slot for start, n in drawn for slot in range(start, start + n)]
    assert len(runs) == len(slots(runs))
    for left, right in zip(runs.runs, runs.runs[1:], strict=False):
        assert left.stop != right.start
    assert runs.end == (slots(runs)[-1] + 1 if slots(runs) else None)


@given(pairs, st.integers(0, 50), st.integers(0, 50))
def test_slices(drawn: list[tuple[int, int]], a: int, b: int) -> None:
    runs = runs_of(drawn)
    start, stop = min(a, b), max(a, b)
    before = list(runs.runs)
    part = runs.slice(start, stop)
    assert slots(part) == slots(runs)[start:stop]
    # A slice is a copy.
    part.extend([Run(900, 910)])
    assert runs.runs == before


@given(pairs, pairs, st.integers(0, 50), st.integers(0, 50))
def test_splices(drawn: list[tuple[int, int]], other: list[tuple[int, int]], a: int, b: int) -> None:
    runs, middle = runs_of(drawn), runs_of(other)
    start, stop = min(a, b, len(runs)), min(max(a, b), len(runs))
    wanted = slots(runs)[:start] + slots(middle) + slots(runs)[stop:]
    assert slots(runs.spliced(start, stop, middle)) == wanted


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("give"), st.integers(0, 10), st.integers(0, 30)),
    ),
    max_size=40,
)


@given(st.integers(0, 60), steps)
def test_a_pool_does_what_a_set_does(capacity: int, drawn: list[tuple[str, int, int]]) -> None:
    pool, free = SlotPool(capacity), set(range(capacity))
    held: list[Runs] = []
    for what, a, b in drawn:
        if what == "take":
            after = held[-1].end if b and held else None
            got = pool.allocate(a, after)
            assert (got is None) == (a > len(free))
            if got is None:
                continue
            assert len(got) == a == len(set(slots(got)))
            assert set(slots(got)) <= free
            if after is not None and after in free and a:
                assert slots(got)[0] == after
            free -= set(slots(got))
            held.append(got)
        elif held:
            runs = held.pop(a % len(held))
            # All of it, or a part.
            part, rest = runs.slice(min(b, len(runs)), len(runs)), runs.slice(0, min(b, len(runs)))
            pool.free(part)
            free |= set(slots(part))
            held.append(rest)
        assert pool.free_count == len(free)
        found = [slot for run in pool.intervals() for slot in range(run.start, run.stop)]
        assert found == sorted(free)
        for left, right in zip(pool.intervals(), pool.intervals()[1:], strict=False):
            assert left.stop < right.start


def test_a_run_is_continued_where_it_ends() -> None:
    pool = SlotPool(100)
    first = pool.allocate(10)
    assert first is not None
    first.extend(pool.allocate(20, first.end) or ())
    assert first.runs == [Run(0, 30)]


def test_a_new_run_leaves_the_others_room_to_grow() -> None:
    pool = SlotPool(1000)
    first, second = pool.allocate(100), pool.allocate(100)
    assert first is not None
    assert second is not None
    assert second.runs[0].start >= 200
    assert second.runs[0].stop < 900
    for runs in (first, second):
        runs.extend(pool.allocate(100, runs.end) or ())
        assert len(runs.runs) == 1


def test_memory_that_was_used_is_used_again() -> None:
    pool = SlotPool(100_000)
    held = [pool.allocate(100) for _ in range(20)]
    highest = max(runs.end or 0 for runs in held if runs is not None)
    assert highest < 5000
    for runs in held:
        pool.free(runs or ())
    again = [pool.allocate(100) for _ in range(20)]
    assert max(runs.end or 0 for runs in again if runs is not None) <= highest


def test_what_fits_nowhere_whole_is_taken_in_the_fewest_parts() -> None:
    pool = SlotPool(60)
    held = pool.allocate(60)
    assert held is not None
    for run in (Run(0, 10), Run(20, 45), Run(50, 60)):
        pool.free([run])
    got = pool.allocate(40)
    assert got is not None
    assert len(got.runs) == 3
    assert got.runs[0] == Run(20, 45)


def test_freeing_twice_is_found_out() -> None:
    pool = SlotPool(50)
    runs = pool.allocate(30)
    assert runs is not None
    pool.free(runs.slice(10, 20))
    for run in (Run(10, 20), Run(5, 11), Run(19, 25), Run(12, 13), Run(5, 25), Run(29, 31)):
        with pytest.raises(CacheCorruption):
            pool.free([run])
