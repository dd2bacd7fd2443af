"""What happened in a cache, for metrics and for the explanation of misses. Lengths only, never content."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from longturn.cache.eviction import Usage

EventKind = Literal["hit", "stored", "evicted", "loaded", "fetched", "failed", "cleared"]


@dataclass(frozen=True, slots=True)
class Event:
    """`tokens` tokens of `tier` were hit, stored, evicted, ... at `time` (seconds of the cache's clock).

    by: the allocation on whose behalf it happened; depth: position of the first token. For an eviction: kept_in, the
    lower tier that still has the tokens; of, the allocation that used them last, where the policy knows; expired,
    whether they had been pinned or expected until some time before.
    """

    time: float
    kind: EventKind
    tier: str
    tokens: int
    by: int | None = None
    depth: int = 0
    kept_in: str | None = None
    of: int = 0
    expired: bool = False


class EventLog:
    """The latest events, at most `limit` until they are taken."""

    def __init__(self, clock: Callable[[], float], limit: int = 10_000) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=limit)

    def record(
        self,
        kind: EventKind,
        tier: str,
        tokens: int,
        by: int | None = None,
        depth: int = 0,
        kept_in: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Note an event that happens now, if it concerns any tokens. usage: theirs, where they are evicted."""
        if tokens:
            now = self._clock()
            of, until = (usage.by, usage.until) if usage is not None else (0, 0.0)
            self._events.append(Event(now, kind, tier, tokens, by, depth, kept_in, of, 0 < until <= now))

    def take(self) -> list[Event]:
        """All events since the last call, oldest first."""
        events = list(self._events)
        self._events.clear()
        return events
