"""When the blocks of each request were used before: all of a trace that a cache without a clock can react to."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from longturn.lab.trace.form import Ids, Trace
from longturn.lab.trace.tree import PrefixTree, Run


@dataclass(frozen=True, slots=True)
class Reuse:
    """A trace's block accesses, summed up. A few numbers per request, however long the prompts are.

    Request r touches `lengths[r]` blocks: first the runs of `of(r)`, each of blocks whose latest touch before was by
    one earlier request, then blocks that are new. All arrays are int64 and not to be written to.

    unit: tokens per block; accesses: blocks touched in the whole trace; rate: the share of the distinct blocks that was
    looked at, 1 unless a sample was taken; looked_at: touches of these blocks; lengths [requests]: the same by request;
    ends [requests]: where a request's runs end in `previous` and `blocks` [runs].
    """

    unit: int
    accesses: int
    rate: float
    looked_at: int
    lengths: Ids
    ends: Ids
    previous: Ids
    blocks: Ids

    @classmethod
    def collect(
        cls,
        unit: int,
        requests: Iterable[tuple[int, int, list[Run]]],
        *,
        rate: float = 1.0,
        progress: Callable[[int], None] | None = None,
    ) -> Reuse:
        """From each request's blocks, blocks looked at, and the runs of these."""
        accesses = 0
        lengths, ends, previous, blocks = array("q"), array("q"), array("q"), array("q")
        for touched, looked_at, runs in requests:
            accesses += touched
            lengths.append(looked_at)
            for last, count in runs:
                previous.append(last)
                blocks.append(count)
            ends.append(len(blocks))
            if progress:
                progress(len(ends))
        columns = (np.array(column, dtype=np.int64) for column in (lengths, ends, previous, blocks))
        return cls(unit, accesses, rate, sum(lengths), *columns)

    @property
    def unique(self) -> int:
        """Distinct blocks, estimated where a sample was taken."""
        return round((self.looked_at - int(self.blocks.sum())) / self.rate)

    def runs(self) -> Iterator[list[Run]]:
        """The known runs of each request, from the root down: (the request that touched them before, blocks)."""
        previous, blocks = self.previous.tolist(), self.blocks.tolist()
        for start, end in pairwise([0, *self.ends.tolist()]):
            yield list(zip(previous[start:end], blocks[start:end], strict=True))

    def scaled(self, capacity: int) -> float:
        """A capacity in blocks, > 0, scaled to the blocks that were looked at. A block always counts itself."""
        return 1 + (capacity - 1) * self.rate

    def hit_ratio(self, hits: float) -> float:
        """The share of all accesses that hit, from the hits among the blocks looked at.

        A sample's misses are scaled up, not its hits: the few blocks at the head of many prompts make up much of the
        accesses, are nearly always hit, and are in the sample or not by a single throw of the dice.
        """
        if not self.accesses:
            return 0.0
        return max(0.0, 1 - (self.looked_at - hits) / (self.accesses * self.rate))


def reuse(trace: Trace, progress: Callable[[int], None] | None = None) -> Reuse:
    """Go through a trace once. Exact; memory grows with the distinct blocks (8 bytes each) and the requests.

    progress: called with the number of requests done.
    """
    tree = PrefixTree()
    touched = (
        (len(request.prompt), len(request.prompt), tree.touch(request.prompt.ids(), request.salt)) for request in trace
    )
    return Reuse.collect(trace.unit, touched, progress=progress)
