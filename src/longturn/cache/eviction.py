"""Eviction orders as a table, and the queue of victims that they sort.

An order is a function from a `Usage` to a sortable key: the smallest key goes first. A new one is a line in `ORDERS`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from longturn.errors import ConfigError

# Protection classes: a lower class is always evicted before a higher one.
DEAD, NORMAL, EXPECTED, PINNED = range(4)


class Usage:
    """What an eviction order may look at, for one radix node or one page.

    stamp: order of the last use; created: order of creation; hits: uses so far; priority: the highest that a user gave;
    cost: FLOPs that recomputing one byte of it takes; age: the queue's age at the last use (ageing of `cost`);
    by: the allocation that used it last, 0 where the policy does not say;
    protection: DEAD, NORMAL, EXPECTED or PINNED, the latter two until time `until` (seconds of the cache's clock).
    """

    __slots__ = ("age", "by", "cost", "created", "hits", "priority", "protection", "stamp", "ticket", "until")

    def __init__(self, stamp: int, *, priority: int = 0, cost: float = 1.0, age: float = 0.0, by: int = 0) -> None:
        self.stamp = stamp
        self.created = stamp
        self.hits = 1
        self.priority = priority
        self.cost = cost
        self.age = age
        self.by = by
        self.protection = NORMAL
        self.until = 0.0
        self.ticket = 0

    def copy(self) -> Usage:
        """The same history, not queued."""
        other = Usage(self.stamp, priority=self.priority, cost=self.cost, age=self.age, by=self.by)
        other.created, other.hits = self.created, self.hits
        other.protection, other.until = self.protection, self.until
        return other


def _cost_key(usage: Usage) -> float:
    """GreedyDual-Size-Frequency (Cherkasova 1998): the cost of recomputing a byte, times its uses, plus ageing."""
    return usage.age + usage.hits * usage.cost


ORDERS: dict[str, Callable[[Usage], Any]] = {
    "lru": lambda u: u.stamp,
    "lfu": lambda u: (u.hits, u.stamp),
    "fifo": lambda u: u.created,
    "slru": lambda u: (u.hits >= 2, u.stamp),
    "priority": lambda u: (u.priority, u.stamp),
    "cost": _cost_key,
}


def order(name: str) -> Callable[[Usage], Any]:
    """The key function called `name`. Raises ConfigError when there is none."""
    try:
        return ORDERS[name]
    except KeyError:
        raise ConfigError(f"no eviction order is called {name!r}: choose one of {', '.join(ORDERS)}") from None


class Recency:
    """Stamps uses in order, and knows what recomputing would cost (for the order `cost`).

    linear_flops: FLOPs to compute one token; attention_flops: for its attention to one earlier token.
    """

    def __init__(self, linear_flops: float = 1.0, attention_flops: float = 0.0) -> None:
        self.age = 0.0
        self._linear, self._attention = linear_flops, attention_flops
        self._stamp = 0

    def fresh(self, depth: int, n: int, by: int = 0) -> Usage:
        """The usage of `n` tokens just computed behind `depth` others, by an allocation."""
        self._stamp += 1
        return Usage(self._stamp, cost=self._linear + self._attention * (depth + n / 2), age=self.age, by=by)

    def touch(self, usage: Usage, hits: int = 1, by: int = 0) -> None:
        """Note a use (mutates `usage`; whoever queued its owner must offer it again). What was dead lives again."""
        self._stamp += 1
        usage.stamp = self._stamp
        usage.hits += hits
        usage.age = self.age
        usage.by = by
        if usage.protection == DEAD:
            usage.protection = NORMAL


class Evictable(Protocol):
    """Anything with a usage."""

    usage: Usage


T = TypeVar("T", bound=Evictable)
# Of all queues together: an item may leave one and enter another, and what is left of it in the first must not revive.
_TICKETS = itertools.count(1)


class Victims(Generic[T]):
    """A heap of what may be evicted now. Entries that were withdrawn or offered again are skipped when popped."""

    def __init__(self, key: Callable[[Usage], Any], recency: Recency) -> None:
        self._key = key
        self._recency = recency
        self._heap: list[tuple[int, Any, int, T]] = []
        self._timers: list[tuple[float, int, T]] = []
        self._live = 0

    def offer(self, item: T) -> None:
        """Queue `item`, or queue it anew after its usage has changed."""
        usage = item.usage
        self._live += usage.ticket == 0
        usage.ticket = next(_TICKETS)
        heapq.heappush(self._heap, (usage.protection, self._key(usage), usage.ticket, item))
        if usage.protection > NORMAL:
            heapq.heappush(self._timers, (usage.until, usage.ticket, item))
        # Entries that were withdrawn or offered again must not pile up, nor hold what they name in memory.
        bound = max(64, 3 * self._live)
        if len(self._heap) > bound:
            self._heap = [entry for entry in self._heap if entry[3].usage.ticket == entry[2]]
            heapq.heapify(self._heap)
        if len(self._timers) > bound:
            self._timers = [entry for entry in self._timers if entry[2].usage.ticket == entry[1]]
            heapq.heapify(self._timers)

    def withdraw(self, item: T) -> None:
        """Take `item` out, if it is queued."""
        if item.usage.ticket:
            item.usage.ticket = 0
            self._live -= 1

    def pop(self, now: float) -> T | None:
        """Take out the item that goes first at time `now` (seconds), None when nothing may be evicted."""
        self._expire(now)
        while self._heap:
            _, key, ticket, item = heapq.heappop(self._heap)
            if item.usage.ticket != ticket:
                continue
            self.withdraw(item)
            if isinstance(key, float):
                self._recency.age = max(self._recency.age, key)
            return item
        return None

    def _expire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, ticket, item = heapq.heappop(self._timers)
            if item.usage.ticket == ticket:
                item.usage.protection = NORMAL
                self.offer(item)

    def __contains__(self, item: T) -> bool:
        return item.usage.ticket > 0

    def __len__(self) -> int:
        return self._live
