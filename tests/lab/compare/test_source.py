"""Where a comparison's requests come from: whole sessions, the same ones in every process."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.lab.compare import Source
from longturn.lab.compare.source import Part
from longturn.lab.trace import write_requests
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.live.traces import Listed, request


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_requests(Generated(Workload(sessions=40, turns=3, system_tokens=20, user_tokens=5, output_tokens=5)), path)
    return path


def sessions(source: Source) -> Counter[str]:
    return Counter(one.session for one in source.open())


def test_all_of_a_trace(path: Path) -> None:
    trace = Source(path).open()
    assert (trace.name, trace.unit, trace.notes) == ("trace.jsonl", 1, [])
    assert len(sessions(Source(path))) == 40


def test_a_share_is_of_whole_sessions(path: Path) -> None:
    whole = sessions(Source(path))
    before: set[str] = set()
    for share in (0.1, 0.3, 0.7, 1.0):
        taken = sessions(Source(path, share=share))
        assert all(whole[name] == n for name, n in taken.items())
        # A larger share holds a smaller one.
        assert before <= set(taken)
        before = set(taken)
        assert abs(len(taken) - 40 * share) < 12
    assert sessions(Source(path, share=0.0)) == {}
    assert Source(path, share=0.25).open().notes == ["a sample of about 25.0% of the sessions"]


def test_another_process_takes_the_same(path: Path) -> None:
    source = Source(path, share=0.4, apart=True)
    assert list(pickle.loads(pickle.dumps(source)).open()) == list(source.open())


def test_sessions_apart_share_nothing(path: Path) -> None:
    trace = Source(path, apart=True).open()
    assert len({one.salt for one in trace}) == 40
    assert all(one.salt.endswith(f"/{one.session}") for one in trace)
    assert trace.notes == ["sessions are taken as if they shared nothing"]


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), st.integers(1, 9), max_size=12), st.integers(0, 60))
def test_so_many_sessions_as_are_asked_for(sizes: dict[str, int], most: int) -> None:
    """No session more than it takes, and at least one."""
    source = Source(Path("trace")).with_sessions(sizes, most)
    taken = {name: n for name, n in sizes.items() if _taken(source, name)}
    total = sum(taken.values())
    assert total >= min(most, sum(sizes.values()))
    if most and taken:
        assert total - max(taken.values()) < most
    assert most == 0 or not sizes or taken


def _taken(source: Source, session: str) -> bool:
    return bool(list(Part(Listed([request(session, [1])]), source)))


def test_as_much_as_can_be_replayed(path: Path) -> None:
    assert Source(path).at_most(1e9) == Source(path)
    few = Source(path).at_most(10)
    assert 1 <= len(sessions(few)) < 15
    assert len(sessions(Source(path).at_most(0.1))) == 1
    assert len(sessions(few.at_most(0.1))) == 1
