"""What is said about a trace, against counting by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.lab.trace import Blocks, TraceRequest, open_trace
from longturn.lab.trace.describe import Beginnings, Description, describe
from longturn.lab.trace.generate import Generated, Workload
from longturn.lab.trace.sharing import Prefix, SharingTree
from tests.lab.trace import files

PATHS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=6)), max_size=12)


class Listed:
    """Prompts of (session, ids), one second apart."""

    def __init__(self, prompts: list[tuple[int, list[int]]], unit: int = 1, partial: int = 0) -> None:
        self.name, self.unit, self.notes = "listed", unit, ["a note"]
        self._prompts, self._partial = prompts, partial

    def __iter__(self) -> Iterator[TraceRequest]:
        for place, (session, ids) in enumerate(self._prompts):
            n_tokens = len(ids) * self.unit - self._partial
            yield TraceRequest(str(place), str(session), float(place), Blocks.of(ids), n_tokens, 7, think=0.5)


def prefixes(ids: list[int]) -> list[tuple[int, ...]]:
    return [tuple(ids[: n + 1]) for n in range(len(ids))]


@settings(deadline=None)
@given(PATHS)
def test_the_sharing_tree_counts_sessions(paths: list[tuple[int, list[int]]]) -> None:
    tree = SharingTree()
    sessions: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for session, ids in paths:
        tree.add(Blocks.of(ids).ids(), session)
        for prefix in prefixes(ids):
            sessions[prefix].add(session)
    found = tree.summary(most=100)
    assert [group.sessions for group in found.by_sessions] == [1, 2, 10, 100, 1000]
    assert found.by_sessions[0].blocks == sum(len(users) == 1 for users in sessions.values())
    assert found.by_sessions[1].blocks == sum(len(users) > 1 for users in sessions.values())
    children: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for prefix in sessions:
        children[prefix[:-1]].append(len(sessions[prefix]))
    forks = {prefix for prefix, listed in children.items() if prefix and len(listed) > 1}
    assert found.forks_between_sessions == sum(len(sessions[prefix]) > 1 for prefix in forks)
    assert found.forks_within_sessions == sum(len(sessions[prefix]) == 1 for prefix in forks)
    expected = {
        Prefix(len(prefix), len(users))
        for prefix, users in sessions.items()
        if len(users) > 1 and max(children[prefix], default=0) < len(users)
    }
    assert set(found.largest) == expected  # paths are too short to be nearly the same
    worth = [prefix.blocks * (prefix.sessions - 1) for prefix in found.largest]
    assert worth == sorted(worth, reverse=True)


def test_prefixes_that_are_nearly_the_same_are_named_once() -> None:
    tree = SharingTree()
    common, other = list(range(100)), list(range(100, 200))
    for session, ids in enumerate([common, [*common, 7], [*common, 7, 8], [*common, *other], [*common, *other], other]):
        tree.add(Blocks.of(ids).ids(), session)
    assert tree.summary(most=5).largest == [Prefix(100, 5), Prefix(200, 2)]
    assert tree.summary(most=1).largest == [Prefix(100, 5)]


@settings(deadline=None)
@given(PATHS)
def test_an_infinite_cache_hits_what_was_there_before(paths: list[tuple[int, list[int]]]) -> None:
    known: set[tuple[int, ...]] = set()
    hits = accesses = 0
    for _, ids in paths:
        hits += sum(prefix in known for prefix in prefixes(ids))
        accesses += len(ids)
        known.update(prefixes(ids))
    found = describe(Listed(paths))
    assert (found.accesses, found.unique, found.requests) == (accesses, len(known), len(paths))
    assert found.infinite == pytest.approx(hits / accesses if accesses else 0)


def test_beginnings_are_compared_within_the_session() -> None:
    prompts = [
        (0, [1, 2]),
        (1, [1, 2, 3]),
        (0, [1, 2, 4]),  # extends
        (0, [1, 2, 4]),  # repeats
        (1, [1, 2, 9, 9]),  # shares the beginning
        (0, [5]),  # shares nothing
        (1, [1, 2, 9, 9, 9]),  # extends
    ]
    assert describe(Listed(prompts)).beginnings == Beginnings(extend=2, repeat=1, rewrite=1, anew=1)


def test_a_block_that_is_not_full_parts_no_paths() -> None:
    found = describe(Listed([(0, [1, 2, 3]), (0, [1, 2, 4, 5])], unit=16, partial=3))
    assert found.beginnings == Beginnings(extend=1, repeat=0, rewrite=0, anew=0)
    assert found.sharing is not None
    assert found.sharing.forks_within_sessions == 0


def test_spreads_and_times() -> None:
    found = describe(Listed([(0, [1] * 10), (1, [2] * 30), (0, [1] * 20), (0, [1] * 40)]))
    assert (found.name, found.unit, found.sessions, found.duration, found.notes) == ("listed", 1, 2, 3, ["a note"])
    assert found.prompt is not None
    assert (found.prompt.count, found.prompt.total, found.prompt.mean) == (4, 100, 25)
    assert (found.prompt.least, found.prompt.most, found.prompt.quantiles["p50"]) == (10, 40, 25)
    assert found.turns is not None
    assert (found.turns.most, found.turns.least) == (3, 1)
    assert found.gaps is not None
    assert sorted((found.gaps.count, found.gaps.least, found.gaps.most)) == [1, 2, 2]
    assert found.think is not None
    assert found.think.mean == 0.5


def test_reuse_is_counted_in_different_tokens() -> None:
    # Nine blocks of others are used between the two uses of the first three, which count themselves.
    prompts = [(0, [1, 2, 3]), (1, list(range(10, 19))), (0, [1, 2, 3])]
    found = describe(Listed(prompts, unit=4))
    assert found.reuse["p99"] == pytest.approx(12 * 4, abs=4)
    assert 9 * 4 <= found.reuse["p10"] < found.reuse["p50"] < found.reuse["p99"]


def test_an_empty_trace_is_described(tmp_path: Path) -> None:
    path = files.write_lines(tmp_path / "file", [files.TOKENS, "nonsense"])
    empty = describe(open_trace(path, format="mooncake", skip_bad=True))
    assert (empty.requests, empty.sessions, empty.infinite, empty.reuse, empty.prompt) == (0, 0, 0, {}, None)
    assert "Left out as malformed: 2" in empty.notes[-1]


def test_a_sample_is_near() -> None:
    trace = Generated(Workload(sessions=100, unit=16))
    counted: list[int] = []
    whole, part = describe(trace), describe(trace, rate=0.1, progress=counted.append)
    assert part.infinite == pytest.approx(whole.infinite, abs=0.03)
    assert part.unique == pytest.approx(whole.unique, rel=0.1)
    assert (part.sharing, part.beginnings) == (None, None)
    assert (part.prompt, part.turns, part.accesses) == (whole.prompt, whole.turns, whole.accesses)
    assert counted == list(range(1, whole.requests + 1))


SHARED_TRACES = [
    ("mooncake_conversation_trace.jsonl.gz", 12_031, None, 288_500, 182_790, 0.366),
    ("weka_claude_code_dev.jsonl.gz", 27_083, 408, 49_347_835, None, 0.963),
]


@pytest.mark.parametrize(("name", "requests", "sessions", "accesses", "unique", "infinite"), SHARED_TRACES)
def test_published_traces_hold_what_was_measured(
    name: str, requests: int, sessions: int | None, accesses: int, unique: int | None, infinite: float
) -> None:
    path = files.SHARED / "traces" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    found: Description = describe(open_trace(path))
    print(name, found.requests, found.sessions, found.accesses, found.unique, found.infinite)
    assert (found.requests, found.accesses) == (requests, accesses)
    assert sessions in (None, found.sessions)
    assert unique in (None, found.unique)
    assert round(found.infinite, 3) == infinite


def test_published_sessions_are_as_long_as_reported() -> None:
    path = files.SHARED / "traces" / "coding_agent_b_structure.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    requests = list(open_trace(path))
    assert len(requests) == 1487
    assert len({request.session for request in requests}) == 49
    assert all(before.time <= after.time for before, after in pairwise(requests))


def test_published_trajectories_branch_four_ways() -> None:
    path = files.SHARED / "traces" / "taubench_gpt4o_airline.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    found = describe(open_trace(path))
    assert (found.requests, found.sessions) == (2454, 200)
    assert found.sharing is not None
    policy = found.sharing.largest[0]
    assert policy.sessions == 200
    assert policy.blocks == pytest.approx(1570, rel=0.15)
