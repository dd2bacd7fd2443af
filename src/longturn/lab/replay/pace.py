"""When the requests of a trace arrive. The turns of a session follow each other: none arrives before the last ended."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from longturn.lab.trace import TraceRequest

Numbered = tuple[int, TraceRequest]


class Pace(Protocol):
    """A source of requests that is told when requests end."""

    def due(self) -> float | None:
        """When the next request that can arrive does so, in seconds; None when none can before another ends."""

    def next(self) -> Numbered:
        """Take that request, with its place in the trace. To be called after `due`."""

    def ended(self, request: TraceRequest, now: float) -> None:
        """A request has ended, or was refused, at `now`."""


class Recorded:
    """As the trace says, but no turn before the one before it has ended. Goes through the trace once, as a stream: what
    it lists later does not arrive earlier, whatever the times say."""

    def __init__(self, trace: Iterable[TraceRequest]) -> None:
        self._coming: Iterator[Numbered] = enumerate(trace)
        self._head = next(self._coming, None)
        self._time = self._head[1].time if self._head is not None else 0.0
        self._running: set[str] = set()
        self._held: dict[str, deque[Numbered]] = {}
        self._released: list[tuple[float, int, TraceRequest]] = []

    def due(self) -> float | None:
        while self._head is not None and self._head[1].session in self._running:
            self._held.setdefault(self._head[1].session, deque()).append(self._head)
            self._advance()
        times = [time for time, _, _ in self._released[:1]]
        return min([*times, *([self._time] if self._head is not None else [])], default=None)

    def next(self) -> Numbered:
        if self._released and (self._head is None or self._released[0][0] <= self._time):
            _, number, request = heapq.heappop(self._released)
            return number, request
        assert self._head is not None
        taken = self._head
        self._running.add(taken[1].session)
        self._advance()
        return taken

    def ended(self, request: TraceRequest, now: float) -> None:
        if held := self._held.get(request.session):
            number, follower = held.popleft()
            heapq.heappush(self._released, (max(now, follower.time), number, follower))
        else:
            self._held.pop(request.session, None)
            self._running.discard(request.session)

    def _advance(self) -> None:
        self._head = next(self._coming, None)
        if self._head is not None:
            self._time = max(self._time, self._head[1].time)


class Closed:
    """`concurrency` sessions at a time, each turn after the last one's end and `think` times the pause that the
    trace tells. Holds the trace."""

    def __init__(self, trace: Iterable[TraceRequest], concurrency: int, think: float = 1.0) -> None:
        sessions: dict[str, deque[Numbered]] = {}
        for number, request in enumerate(trace):
            sessions.setdefault(request.session, deque()).append((number, request))
        self._sessions = sessions
        self._waiting = deque(sessions)
        self._think = think
        self._order = itertools.count()
        self._due: list[tuple[float, int, str]] = []
        for _ in range(min(concurrency, len(sessions))):
            self._begin(0.0)

    def _begin(self, now: float) -> None:
        if self._waiting:
            heapq.heappush(self._due, (now, next(self._order), self._waiting.popleft()))

    def due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def next(self) -> Numbered:
        return self._sessions[heapq.heappop(self._due)[2]].popleft()

    def ended(self, request: TraceRequest, now: float) -> None:
        following = self._sessions[request.session]
        if following:
            pause = (following[0][1].think or 0.0) * self._think
            heapq.heappush(self._due, (now + pause, next(self._order), request.session))
        else:
            self._begin(now)
