"""When requests arrive: each once, the turns of a session in their order, never two of one session at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.lab.replay.load import Load
from longturn.lab.replay.pace import Closed, Numbered, Pace, Recorded
from longturn.lab.trace import TraceRequest
from tests.lab.live.traces import Listed, request


@dataclass
class Run:
    """One request: its place in the trace, when it arrived and when it ended."""

    number: int
    request: TraceRequest
    arrived: float
    ended: float = -1.0


def drive(pace: Pace, lasts: Callable[[int], float]) -> list[Run]:
    """Let all requests run, each as long as `lasts` says of its place; returns them as they arrived."""
    now, runs, running = 0.0, [], []
    while True:
        due = pace.due()
        first = min(running, key=lambda run: (run.arrived + lasts(run.number), run.number), default=None)
        if due is not None and (first is None or due <= first.arrived + lasts(first.number)):
            number, one = pace.next()
            runs.append(Run(number, one, due))
            running.append(runs[-1])
        elif first is not None:
            running.remove(first)
            now = max(now, first.arrived + lasts(first.number))
            first.ended = now
            pace.ended(first.request, now)
        else:
            return runs


def listed(rows: list[tuple[str, float, float | None]]) -> Listed:
    return Listed([request(session, [n], time=time, think=think) for n, (session, time, think) in enumerate(rows)])


SESSIONS = st.sampled_from("abcd")
TIMES = st.integers(0, 8).map(float)
TRACES = st.lists(st.tuples(SESSIONS, TIMES, st.none() | TIMES), max_size=20).map(listed)
LENGTHS = st.lists(st.integers(0, 6).map(float), min_size=20, max_size=20)


def in_order(trace: Listed, runs: list[Run]) -> None:
    """Every request ran once, as what it is, after those of its session before it had ended."""
    assert sorted(run.number for run in runs) == list(range(len(trace.requests)))
    assert all(trace.requests[run.number] is run.request for run in runs)
    assert all(run.ended >= run.arrived for run in runs)
    last: dict[str, Run] = {}
    for run in runs:
        before = last.get(run.request.session)
        if before is not None:
            assert before.number < run.number
            assert before.ended <= run.arrived
        last[run.request.session] = run


@settings(deadline=None)
@given(TRACES, LENGTHS)
def test_recorded(trace: Listed, lengths: list[float]) -> None:
    runs = drive(Recorded(trace), lengths.__getitem__)
    in_order(trace, runs)
    ended = {run.number: run.ended for run in runs}
    latest = 0.0
    for run in sorted(runs, key=lambda run: run.number):
        latest = max(latest, run.request.time)
        before = [n for n in range(run.number) if trace.requests[n].session == run.request.session]
        # As recorded, or as soon as the one before it had ended.
        assert run.arrived >= run.request.time
        assert run.arrived <= max([latest, *(ended[n] for n in before)])


@settings(deadline=None)
@given(TRACES, LENGTHS, st.integers(1, 5), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_closed(trace: Listed, lengths: list[float], concurrency: int, think: float) -> None:
    runs = drive(Closed(trace, concurrency, think), lengths.__getitem__)
    in_order(trace, runs)
    names = list(dict.fromkeys(one.session for one in trace))
    spans: dict[str, tuple[float, float]] = {}
    last: dict[str, Run] = {}
    for run in runs:
        session = run.request.session
        if session in last:
            assert run.arrived == last[session].ended + think * (run.request.think or 0.0)
        spans[session] = (spans.get(session, (run.arrived, 0.0))[0], run.ended)
        last[session] = run
    # Sessions begin in their order, the first ones at once, each later one when another has ended.
    assert list(spans) == names
    begun = [spans[name][0] for name in names]
    assert begun[:concurrency] == [0.0] * min(concurrency, len(names))
    for place in range(concurrency, len(names)):
        ends = sorted(spans[name][1] for name in names[:place])
        assert begun[place] == ends[place - concurrency]


def test_a_trace_out_of_order_never_goes_back() -> None:
    """A file may list one session after the other: a request that comes later in it cannot have arrived before."""
    runs = drive(Recorded(listed([("a", 10.0, None), ("b", 0.0, None)])), lambda n: 1.0)
    assert [(run.number, run.arrived) for run in runs] == [(0, 10.0), (1, 10.0)]


def test_recorded_goes_through_the_trace_as_a_stream() -> None:
    """Only what is held back is in memory."""
    taken = 0

    def requests() -> Iterator[TraceRequest]:
        nonlocal taken
        for n in range(100):
            taken += 1
            yield request(f"s{n}", [n], time=float(n))

    pace = Recorded(requests())
    for n in range(10):
        assert pace.due() == float(n)
        number, one = pace.next()
        pace.ended(one, float(n))
        assert (number, taken) == (n, n + 2)


def test_nothing_to_do() -> None:
    for pace in (Recorded([]), Closed([], 3)):
        assert pace.due() is None


def test_a_load_chooses_the_pace_and_says_so() -> None:
    trace = listed([("a", 5.0, None), ("a", 6.0, 2.0)])

    def arrivals(load: Load) -> list[float]:
        return [run.arrived for run in drive(load.pace(trace), lambda n: 3.0)]

    assert arrivals(Load()) == [5.0, 8.0]
    assert arrivals(Load(concurrency=1)) == [0.0, 5.0]
    assert arrivals(Load(concurrency=1, think=0.5)) == [0.0, 4.0]
    assert "arrive as recorded" in Load().premises()[0]
    assert Load(3, 0.0).premises()[0] == "3 sessions at a time, no think times"
    assert Load(3, 1.0).premises()[0] == "3 sessions at a time, think times as recorded"
    assert Load(3, 0.5, scale=4).premises()[0] == "3 sessions at a time, 0.5 times the recorded think times"
    assert Load(scale=4).premises()[-1] == "all lengths are 1/4 of the trace's"


def test_places_are_those_of_the_trace() -> None:
    """Of a request, its place is told as it arrives, whatever the order of arrivals."""
    trace = listed([("a", 0.0, None), ("a", 0.0, None), ("b", 0.0, None)])
    taken: list[Numbered] = []
    pace = Closed(trace, 1)
    while pace.due() is not None:
        taken.append(pace.next())
        pace.ended(taken[-1][1], 0.0)
    assert taken == list(enumerate(trace))
