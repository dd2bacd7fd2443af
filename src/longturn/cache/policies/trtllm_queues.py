"""TensorRT-LLM's queues of idle blocks: lowest priority first, then the order of release.

Follows `LRUEvictionPolicy` of its V1 manager (`evictionPolicy.cpp`). Priorities go from 0 to 100. A priority may be for
a time, which begins when its block becomes idle; then the block goes to the back of the default priority.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from longturn.cache.blocks import BlockQueue, Ids
from longturn.errors import CacheCorruption

LOWEST, DEFAULT, HIGHEST = 0, 35, 100


class IdleBlocks:
    """The idle blocks of one level, of all `priority`, int64 [n_blocks], which belongs to their owner."""

    def __init__(self, priority: npt.NDArray[np.int64], blocks: Ids) -> None:
        self._priority = priority
        self._queues = {DEFAULT: BlockQueue(len(priority), blocks)}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def lowest(self) -> tuple[int, BlockQueue]:
        """The lowest priority of any of these blocks, and its queue; an empty queue where there are none."""
        for priority in sorted(self._queues):
            if len(self._queues[priority]):
                return priority, self._queues[priority]
        return DEFAULT, self._queues[DEFAULT]

    def append(self, blocks: Ids) -> None:
        """Put blocks to the back of the queues of their priorities."""
        for priority, some in self._by_priority(blocks):
            if priority not in self._queues:
                self._queues[priority] = BlockQueue(len(self._priority))
            self._queues[priority].append(some)

    def remove(self, blocks: Ids) -> None:
        """Take blocks out, which have the priorities that they were put in with."""
        for priority, some in self._by_priority(blocks):
            self._queues[priority].remove(some)

    def all(self) -> Ids:
        """All of them, in the order in which they go."""
        return np.concatenate([queue.peek(len(queue)) for _, queue in sorted(self._queues.items())])

    def check(self, blocks: Ids) -> None:
        """Raises CacheCorruption unless these are `blocks`, each in the queue of its priority."""
        for priority, queue in self._queues.items():
            queue.check()
            some = blocks[self._priority[blocks] == priority]
            if len(some) != len(queue) or not queue.has(some).all():
                raise CacheCorruption(f"the queue of priority {priority} does not have the idle blocks of it")
        if len(blocks) != len(self):
            raise CacheCorruption("a block is idle and in no queue")

    def _by_priority(self, blocks: Ids) -> list[tuple[int, Ids]]:
        if not len(blocks):
            return []
        priorities = self._priority[blocks]
        if (priorities == priorities[0]).all():
            return [(int(priorities[0]), blocks)]
        return [(int(priority), blocks[priorities == priority]) for priority in np.unique(priorities)]


class Durations:
    """For how long blocks keep their priorities once they are idle, and which of these times run."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._running: dict[int, int] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._ticket = 0

    def set(self, blocks: Ids, seconds: float | None) -> None:
        """Give idle and other blocks a time, or none; their times that run are stopped."""
        if seconds is not None or self._seconds:
            for block in blocks.tolist():
                self._running.pop(block, None)
                self._seconds.pop(block, None)
                if seconds is not None:
                    self._seconds[block] = seconds

    def begin(self, blocks: Ids, now: float) -> None:
        """These blocks are idle now."""
        if self._seconds:
            for block in self._timed(blocks):
                self._ticket += 1
                self._running[block] = self._ticket
                heapq.heappush(self._ends, (now + self._seconds[block], self._ticket, block))

    def stop(self, blocks: Ids) -> None:
        """These blocks are not idle any more; they keep their time for when they will be."""
        if self._running:
            for block in self._timed(blocks):
                self._running.pop(block, None)

    def ended(self, now: float) -> list[int]:
        """The idle blocks whose times have ended, in that order; they have none any more."""
        out = []
        while self._ends and self._ends[0][0] <= now:
            _, ticket, block = heapq.heappop(self._ends)
            if self._running.get(block) == ticket:
                del self._running[block], self._seconds[block]
                out.append(block)
        return out

    def _timed(self, blocks: Ids) -> list[int]:
        return [block for block in blocks.tolist() if block in self._seconds]
