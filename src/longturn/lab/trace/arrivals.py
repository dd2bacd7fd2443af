"""When requests come: models that give the requests of a trace other times than were recorded."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from typing import Protocol

import numpy as np

from longturn.errors import ConfigError
from longturn.lab.trace.form import Trace, TraceRequest


class Arrivals(Protocol):
    """A model of arrivals."""

    def note(self) -> str:
        """The premise, one sentence."""

    def retimed(self, trace: Trace, random: np.random.Generator) -> Iterator[TraceRequest]:
        """The requests in the order of their new times; those of a session stay in their order."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """As in the trace, `speed` times as fast."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        _positive("speed", self.speed)

    def note(self) -> str:
        return f"Requests come at their recorded times, {self.speed:g} times as fast."

    def retimed(self, trace: Trace, random: np.random.Generator) -> Iterator[TraceRequest]:
        for request in trace:
            yield replace(request, time=request.time / self.speed)


@dataclass(frozen=True, slots=True)
class Poisson:
    """In the order of the trace, `rate` requests per second on average, independent of each other."""

    rate: float

    def __post_init__(self) -> None:
        _positive("rate", self.rate)

    def note(self) -> str:
        return f"Requests come in the order of the trace as a Poisson process, {self.rate:g} per second."

    def retimed(self, trace: Trace, random: np.random.Generator) -> Iterator[TraceRequest]:
        time = 0.0
        for request in trace:
            yield replace(request, time=time, think=None)
            time += random.exponential(1 / self.rate)


@dataclass(frozen=True, slots=True)
class GapsOf:
    """In the order of the trace, with the gaps between the arrivals of another one, over again when these run out."""

    other: Trace
    speed: float = 1.0

    def __post_init__(self) -> None:
        _positive("speed", self.speed)

    def note(self) -> str:
        return f"Requests come with the gaps between the arrivals in {self.other.name}, {self.speed:g} times as fast."

    def retimed(self, trace: Trace, random: np.random.Generator) -> Iterator[TraceRequest]:
        time, gaps = 0.0, self._gaps()
        for request in trace:
            yield replace(request, time=time, think=None)
            time += next(gaps)

    def _gaps(self) -> Iterator[float]:
        while True:
            n_gaps = 0
            for before, after in pairwise(self.other):
                n_gaps += 1
                yield max(0.0, after.time - before.time) / self.speed
            if not n_gaps:
                raise ConfigError(f"{self.other.name} has fewer than two requests: it shows no gaps between arrivals.")


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` people at once, each of whom has one session after the other and thinks before every request.

    They think as long as the trace says, or for `think` seconds on average (exponential) if that is given. Answers take
    no time here: the times are the earliest possible ones, and a replay with a clock adds what answers take to `think`.
    All requests of the trace are in memory, as runs.
    """

    users: int
    think: float | None = None

    def __post_init__(self) -> None:
        _positive("users", self.users)
        if self.think is not None and not 0 <= self.think < inf:
            raise ConfigError(f"A think time of {self.think} seconds is not possible: give 0 or more.")

    def note(self) -> str:
        how = "as long as recorded" if self.think is None else f"{self.think:g} s on average"
        return f"{self.users} users have one session after the other and think {how} before each request."

    def retimed(self, trace: Trace, random: np.random.Generator) -> Iterator[TraceRequest]:
        sessions: dict[str, deque[TraceRequest]] = {}
        for request in trace:
            sessions.setdefault(request.session, deque()).append(request)
        waiting = iter(sessions.values())
        # (time, user, think, the rest of the session)
        due: list[tuple[float, int, float, deque[TraceRequest]]] = []
        for user, session in zip(range(self.users), waiting, strict=False):
            heapq.heappush(due, (0.0, user, 0.0, session))
        while due:
            time, user, think, session = heapq.heappop(due)
            yield replace(session.popleft(), time=time, think=think)
            rest = session if session else next(waiting, None)
            if rest is None:
                continue
            think = self._think(rest[0], random, trace.name, new_session=rest is not session)
            heapq.heappush(due, (time + think, user, think, rest))

    def _think(self, request: TraceRequest, random: np.random.Generator, name: str, *, new_session: bool) -> float:
        if self.think is not None:
            return float(random.exponential(self.think))
        if request.think is not None:
            return request.think
        if new_session:
            return 0.0
        raise ConfigError(f"{name} does not tell how long users think: give a think time in seconds.")


@dataclass
class Retimed:
    """A trace with other arrivals; implements `Trace`. The same seed gives the same times."""

    trace: Trace
    arrivals: Arrivals
    seed: int

    def __post_init__(self) -> None:
        self.name, self.unit = self.trace.name, self.trace.unit
        self.notes = [*self.trace.notes, self.arrivals.note()]

    def __iter__(self) -> Iterator[TraceRequest]:
        return self.arrivals.retimed(self.trace, np.random.default_rng(self.seed))


def with_arrivals(trace: Trace, arrivals: Arrivals, seed: int = 0) -> Trace:
    """The trace with its requests at the times of a model."""
    return Retimed(trace, arrivals, seed)


def _positive(what: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ConfigError(f"Arrivals with {what} {value} are not possible: give a number above 0.")
