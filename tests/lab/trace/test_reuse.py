"""The prefix tree and the reuse it finds, against a dictionary with an entry per block."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from longturn.lab.trace import Blocks, TraceRequest
from longturn.lab.trace.reuse import reuse, touches
from longturn.lab.trace.tree import PrefixTree
from tests.lab.bounds.plain import Listed, chats, requests


def test_example() -> None:
    tree = PrefixTree()
    touches = [[1, 2, 3, 4], [1, 2, 3], [1, 2, 9], [1, 2, 3, 4, 5], [7], []]
    trace = Listed([("", ids) for ids in touches])
    known = [tree.touch(request.prompt.ids(), request.salt) for request in trace]
    assert known == [[], [(0, 3)], [(1, 2)], [(2, 2), (1, 1), (0, 1)], [], []]
    assert (tree.touches, tree.blocks) == (6, 7)


def test_salts_share_nothing() -> None:
    found = reuse(Listed([("a", [1, 2]), ("b", [1, 2]), ("a", [1, 2])]))
    assert (found.previous.tolist(), found.blocks.tolist(), found.unique) == ([0], [2], 4)


def test_answers_are_no_accesses() -> None:
    found = reuse(Listed([("", [1, 2], [3, 4]), ("", [1, 2, 3, 4, 5], [6]), ("", [1])]), answers=True)
    assert found.asked.tolist() == [True, False, True, False, True]
    assert list(found.runs()) == [[], [(0, 2)], [(1, 4)], [(2, 5)], [(3, 1)]]
    assert found.asked_runs.tolist() == [False, True, False, True]
    assert (found.requests, found.accesses, found.looked_at, found.unique) == (3, 8, 8, 6)


def test_an_answer_takes_the_place_of_a_partly_filled_block() -> None:
    half = TraceRequest("0", "s", 0.0, Blocks.of([1, 2]), 15, 20, Blocks.of([7, 8]))
    trace = Listed([], unit=10)
    trace.requests.append(half)
    assert [touch.ids.tolist() for touch in touches(trace, answers=True)] == [[1, 2], [1, 7, 8]]


def check(trace: Listed) -> None:
    found = reuse(trace)
    latest: dict[object, int] = {}
    for request, (path, runs) in enumerate(zip(trace.paths(), found.runs(), strict=True)):
        known = [latest[block] for block in path if block in latest]
        assert [last for last, blocks in runs for _ in range(blocks)] == known
        assert all(deeper[0] < above[0] for above, deeper in pairwise(runs))
        latest.update(dict.fromkeys(path, request))
    assert found.lengths.tolist() == [len(path) for path in trace.paths()]
    assert found.accesses == found.looked_at == sum(found.lengths.tolist())
    assert found.unique == len(latest)


@given(requests)
def test_runs_are_the_latest_touches(listed: list[tuple[str, list[int]]]) -> None:
    check(Listed(listed))


def test_runs_of_conversations() -> None:
    trace = chats(400)
    check(trace)
    assert len(reuse(trace).blocks) < 3 * 400


def test_progress_counts_requests() -> None:
    done: list[int] = []
    reuse(chats(5), progress=done.append)
    assert done == [1, 2, 3, 4, 5]
