"""Models of arrivals: when requests come, and that sessions stay in order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.errors import ConfigError
from longturn.lab.trace import TraceRequest, open_trace
from longturn.lab.trace.arrivals import Arrivals, ClosedLoop, GapsOf, Poisson, Recorded, with_arrivals
from longturn.lab.trace.form import Trace
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.trace import files

TRACE = Generated(Workload(sessions=40, turns=4, user_tokens=3, output_tokens=3, system_tokens=2, unit=4))


def azure(tmp_path: Path, *seconds: float) -> Trace:
    lines = [f"2026-01-01 10:00:{second:09.6f},5,1" for second in seconds]
    return open_trace(files.write_lines(tmp_path / "azure.csv", [files.AZURE[0], *lines]))


def by_session(requests: list[TraceRequest]) -> dict[str, list[str]]:
    sessions: dict[str, list[str]] = defaultdict(list)
    for request in requests:
        sessions[request.session].append(request.id)
    return sessions


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(
        [Recorded(), Recorded(3), Poisson(2), GapsOf(TRACE), ClosedLoop(1), ClosedLoop(7), ClosedLoop(7, 5)]
    ),
    st.integers(0, 3),
)
def test_sessions_stay_in_order_and_times_rise(arrivals: Arrivals, seed: int) -> None:
    trace = with_arrivals(TRACE, arrivals, seed)
    requests = list(trace)
    times = [request.time for request in requests]
    assert times == sorted(times)
    assert times[0] >= 0
    assert by_session(requests) == by_session(list(TRACE))
    assert requests == list(trace)
    assert trace.notes[-1] == arrivals.note()


def test_recorded_times_can_run_faster() -> None:
    assert [r.time for r in with_arrivals(TRACE, Recorded(4))] == pytest.approx([r.time / 4 for r in TRACE])
    assert [r.think for r in with_arrivals(TRACE, Recorded(4))] == [r.think for r in TRACE]


def test_poisson_has_its_rate_and_its_seed() -> None:
    trace = Generated(Workload(sessions=2000, turns=1, user_tokens=1, output_tokens=1, system_tokens=0, unit=4))
    times = np.array([request.time for request in with_arrivals(trace, Poisson(5))])
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.2, rel=0.1)
    assert gaps.std() == pytest.approx(0.2, rel=0.15)
    assert times.tolist() != [request.time for request in with_arrivals(trace, Poisson(5), seed=1)]
    assert [request.id for request in with_arrivals(trace, Poisson(5))] == [request.id for request in trace]


def test_gaps_of_another_trace_are_used_over_again(tmp_path: Path) -> None:
    other = azure(tmp_path, 0, 1, 5, 4.5)
    times = [request.time for request in with_arrivals(TRACE, GapsOf(other, speed=2))][:6]
    assert times == pytest.approx([0, 0.5, 2.5, 2.5, 3, 5])


def test_a_trace_without_gaps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"azure\.csv has fewer than two"):
        list(with_arrivals(TRACE, GapsOf(azure(tmp_path, 3))))


def test_a_closed_loop_has_as_many_sessions_as_users() -> None:
    requests = list(with_arrivals(TRACE, ClosedLoop(3, think=10)))
    remaining = {session: len(ids) for session, ids in by_session(list(TRACE)).items()}
    running: set[str] = set()
    for request in requests:
        running.add(request.session)
        assert len(running) <= 3
        remaining[request.session] -= 1
        if not remaining[request.session]:
            running.remove(request.session)
    thinks = [request.think for request in requests if request.think]
    assert np.mean(thinks) == pytest.approx(10, rel=0.3)


def test_a_closed_loop_thinks_as_long_as_recorded() -> None:
    single = list(with_arrivals(TRACE, ClosedLoop(1)))
    recorded = {request.id: request.think for request in TRACE}
    assert all(request.think == (recorded[request.id] or 0.0) for request in single)
    assert single[-1].time == pytest.approx(sum(think for think in recorded.values() if think is not None))


def test_a_closed_loop_needs_think_times(tmp_path: Path) -> None:
    trace = open_trace(files.write_lines(tmp_path / "file", [files.TOKENS, files.TOKENS]))
    assert len(list(with_arrivals(trace, ClosedLoop(1, think=0)))) == 2
    with pytest.raises(ConfigError, match="think time"):
        list(with_arrivals(trace, ClosedLoop(1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Recorded(0),
        lambda: Poisson(-1),
        lambda: Poisson(float("nan")),
        lambda: GapsOf(TRACE, float("inf")),
        lambda: ClosedLoop(0),
        lambda: ClosedLoop(1, -1),
    ],
)
def test_impossible_arrivals_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match="not possible"):
        make()
