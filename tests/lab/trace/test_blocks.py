"""Sequences of block ids: runs say the same as plain ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longturn.lab.trace import Blocks

RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=6)


def both(runs: list[tuple[int, int]]) -> tuple[Blocks, Blocks]:
    """The same ids as runs and plain."""
    in_runs = Blocks.runs([first for first, _ in runs], [count for _, count in runs])
    return in_runs, Blocks(plain=np.array([first + i for first, count in runs for i in range(count)], dtype=np.int64))


@given(RUNS)
def test_runs_are_the_ids(runs: list[tuple[int, int]]) -> None:
    in_runs, plain = both(runs)
    assert in_runs.ids().tolist() == plain.ids().tolist() == Blocks.of(plain.ids()).ids().tolist()
    assert len(in_runs) == len(plain) == len(plain.ids())


@given(RUNS, st.integers(0, 40), st.integers(0, 40))
def test_part_is_a_slice(runs: list[tuple[int, int]], start: int, stop: int) -> None:
    for blocks in both(runs):
        start, stop = min(start, len(blocks)), min(max(start, stop), len(blocks))
        start = min(start, stop)
        assert blocks.part(start, stop).ids().tolist() == blocks.ids()[start:stop].tolist()
        assert len(blocks.part(start, stop)) == stop - start


@given(RUNS, RUNS)
def test_join_is_one_after_the_other(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    expected = [*both(a)[1].ids().tolist(), *both(b)[1].ids().tolist()]
    for left in both(a):
        for right in both(b):
            assert Blocks.join(left, right).ids().tolist() == expected


@given(RUNS, RUNS, st.integers(0, 20))
def test_shared_with_counts_equal_leading_blocks(
    a: list[tuple[int, int]], b: list[tuple[int, int]], n_common: int
) -> None:
    ids_a, ids_b = both(a)[1].ids().tolist(), both(a)[1].ids().tolist()[:n_common] + both(b)[1].ids().tolist()
    expected = 0
    while expected < min(len(ids_a), len(ids_b)) and ids_a[expected] == ids_b[expected]:
        expected += 1
    for left in (both(a)[0], both(a)[1]):
        head = left.part(0, min(n_common, len(left)))
        for right in both(b):
            assert left.shared_with(Blocks.join(head, right)) == expected


@given(RUNS, RUNS)
def test_equal_are_sequences_of_the_same_ids(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    for left in both(a):
        for right in both(b):
            same = left.ids().tolist() == right.ids().tolist()
            assert (left == right) == same
            assert not same or hash(left) == hash(right)


def test_an_empty_sequence_shares_nothing() -> None:
    empty = Blocks.runs([], [])
    assert len(empty) == 0
    assert empty.ids().tolist() == []
    assert empty.shared_with(Blocks.of([1, 2, 3, 4, 5])) == 0
    assert len(empty.part(0, 0)) == 0
