"""Token slots of the device pool, handed out in contiguous runs.

The pool is addressed by slot, one per token. A conversation whose tokens lie in one run is read in place by the
attention; a second run costs a second pass over it. So a run is extended where it ends if that can be done, and a new
one is put into the first wide gap with a distance to its neighbour, which leaves that one room to grow. The first, not
the widest: memory that was never used costs more than memory that was.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from longturn.errors import CacheCorruption

# Slots taken at once for output to come; keeps a request's tokens in one run.
GROWTH = 64
# A gap is wide when it has room for this many times what is asked for.
_WIDE = 3


class Run(NamedTuple):
    """Slots `start` (inclusive) to `stop` (exclusive)."""

    start: int
    stop: int


class Runs:
    """A sequence of slots as contiguous runs, in token order. Neighbouring runs are merged."""

    __slots__ = ("length", "runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs: list[Run] = []
        self.length = 0
        self.extend(runs)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __repr__(self) -> str:
        return f"Runs({self.runs})"

    def extend(self, runs: Iterable[Run]) -> None:
        """Append `runs` (mutates self)."""
        for run in runs:
            if run.stop <= run.start:
                continue
            if self.runs and self.runs[-1].stop == run.start:
                self.runs[-1] = Run(self.runs[-1].start, run.stop)
            else:
                self.runs.append(run)
            self.length += run.stop - run.start

    def slice(self, start: int, stop: int) -> Runs:
        """The slots of tokens `start` to `stop`, as new runs."""
        out = Runs()
        if start == 0 and stop >= self.length:
            out.runs, out.length = self.runs.copy(), self.length
            return out
        position = 0
        for low, high in self.runs:
            if position >= stop:
                break
            first, last = low + max(start - position, 0), min(high, low + stop - position)
            if first < last:
                out.runs.append(Run(first, last))
                out.length += last - first
            position += high - low
        return out

    def spliced(self, start: int, stop: int, middle: Runs) -> Runs:
        """A copy in which tokens `start` to `stop` lie in `middle` instead."""
        out = self.slice(0, start) if start else Runs()
        out.extend(middle)
        if stop < self.length:
            out.extend(self.slice(stop, self.length))
        return out

    @property
    def end(self) -> int | None:
        """The slot after the last one, None when empty."""
        return self.runs[-1].stop if self.runs else None


class Pool(Protocol):
    """Hands out slots and takes them back."""

    capacity: int
    free_count: int

    def allocate(self, n: int, after: int | None = None) -> Runs | None:
        """Take `n` free slots, beginning at slot `after` if that can be. None when fewer than `n` are free."""

    def free(self, runs: Iterable[Run]) -> None:
        """Give slots back."""

    def check(self, held: Iterable[Run]) -> None:
        """Raises CacheCorruption unless every slot is free or in `held`, and only once."""


class CountingPool:
    """A pool for replays, where nothing lies in the slots: it counts them, and never uses an address twice."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free_count = capacity
        self._next = 0

    def allocate(self, n: int, after: int | None = None) -> Runs | None:
        if n > self.free_count:
            return None
        self.free_count -= n
        self._next += n
        return Runs((Run(self._next - n, self._next),))

    def free(self, runs: Iterable[Run]) -> None:
        self.free_count += sum(run.stop - run.start for run in runs)

    def check(self, held: Iterable[Run]) -> None:
        n = sum(run.stop - run.start for run in held)
        if n + self.free_count != self.capacity:
            raise CacheCorruption(f"{n} slots are held and {self.free_count} free, of {self.capacity}")


class SlotPool:
    """The free slots of a device pool of `capacity` slots."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free_count = capacity
        self._starts: list[int] = [0] if capacity else []
        self._stops: list[int] = [capacity] if capacity else []

    def allocate(self, n: int, after: int | None = None) -> Runs | None:
        """Take `n` free slots, beginning at slot `after` as far as that is free. None when fewer than `n` are free."""
        if n > self.free_count:
            return None
        out = Runs()
        if n == 0:
            return out
        if after is not None:
            at = bisect_left(self._starts, after)
            if at < len(self._starts) and self._starts[at] == after:
                out.extend((self._take(at, 0, min(n, self._stops[at] - after)),))
        while len(out) < n:
            want = n - len(out)
            sizes = [stop - start for start, stop in zip(self._starts, self._stops, strict=True)]
            wide = (i for i, size in enumerate(sizes) if size >= _WIDE * want)
            at = next(wide, max(range(len(sizes)), key=sizes.__getitem__))
            room = sizes[at]
            offset = min((room - want) // 2, want) if room > want and self._starts[at] > 0 else 0
            out.extend((self._take(at, offset, min(room, want)),))
        return out

    def free(self, runs: Iterable[Run]) -> None:
        """Give slots back. Raises CacheCorruption when one of them was free already."""
        for run in runs:
            at = bisect_right(self._starts, run.start)
            if (at and self._stops[at - 1] > run.start) or (at < len(self._starts) and self._starts[at] < run.stop):
                raise CacheCorruption(f"slots {run.start} to {run.stop} are freed twice")
            joins_left = at > 0 and self._stops[at - 1] == run.start
            joins_right = at < len(self._starts) and self._starts[at] == run.stop
            if joins_left and joins_right:
                self._stops[at - 1] = self._stops[at]
                del self._starts[at], self._stops[at]
            elif joins_left:
                self._stops[at - 1] = run.stop
            elif joins_right:
                self._starts[at] = run.start
            else:
                self._starts.insert(at, run.start)
                self._stops.insert(at, run.stop)
            self.free_count += run.stop - run.start

    def intervals(self) -> list[Run]:
        """The free intervals in slot order."""
        return [Run(a, b) for a, b in zip(self._starts, self._stops, strict=True)]

    def check(self, held: Iterable[Run]) -> None:
        """Raises CacheCorruption unless every slot is free or in `held`, and only once."""
        holders = np.zeros(self.capacity, dtype=np.int32)
        for run in itertools.chain(self.intervals(), held):
            holders[run.start : run.stop] += 1
        if (holders != 1).any():
            slot = int((holders != 1).argmax())
            raise CacheCorruption(f"slot {slot} is held {holders[slot]} times: it must be held once")

    def _take(self, at: int, offset: int, n: int) -> Run:
        start, stop = self._starts[at], self._stops[at]
        low, high = start + offset, start + offset + n
        keep = [(a, b) for a, b in ((start, low), (high, stop)) if a < b]
        self._starts[at : at + 1] = [a for a, _ in keep]
        self._stops[at : at + 1] = [b for _, b in keep]
        self.free_count -= n
        return Run(low, high)
