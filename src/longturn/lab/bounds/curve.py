"""The hit ratio of LRU at every capacity, from one pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from longturn.lab.trace.form import Ids
from longturn.lab.trace.reuse import Reuse


@dataclass(frozen=True, slots=True)
class Curve:
    """Hits of LRU as a function of its capacity: straight lines between corners, so exact everywhere.

    capacities, hits: the corners, int64 [corners] each, both ascending, in the blocks that `reuse` looked at.
    """

    reuse: Reuse
    capacities: Ids
    hits: Ids

    def hit_ratio(self, capacity: int) -> float:
        """The block hit ratio with room for `capacity` blocks: what `lru` gives, if no sample was taken."""
        if capacity < 1:
            return 0.0
        # The lines between corners have whole slopes, so in float64 this is exact up to 2**53 hits.
        return self.reuse.hit_ratio(float(np.interp(self.reuse.scaled(capacity), self.capacities, self.hits)))

    @property
    def largest(self) -> int:
        """The smallest capacity in blocks from which on more room brings no more hits."""
        return max(0, 1 + ceil((int(self.capacities[-1]) - 1) / self.reuse.rate))

    def points(self, most: int) -> list[tuple[int, float]]:
        """(capacity in blocks, hit ratio) from one block to the largest useful capacity.

        Every capacity where these are at most `most`; else spaced by an equal factor, so fewer where some round to one.
        """
        if self.largest <= most:
            chosen = range(1, self.largest + 1)
        else:
            spaced = np.geomspace(1, self.largest, most).round().astype(np.int64)
            chosen = np.unique(spaced).tolist()
        return [(capacity, self.hit_ratio(capacity)) for capacity in chosen]


def lru_curve(reuse: Reuse) -> Curve:
    """Mattson's stack distances (1970), for whole runs of blocks at a time.

    LRU keeps the blocks that were touched last, and every block above a cached one was touched no earlier. So a block
    is hit exactly if the capacity is at least its stack distance: the number of blocks touched after it, itself
    included. Blocks of one run have distances that count up by one. How many blocks were last touched when is kept in a
    Fenwick tree, which makes the pass n log n in touches.
    """
    touched = _PrefixSums(len(reuse.lengths))
    total = 0
    above: list[int] = []  # of each run, the blocks that are more recent than its first
    for touch, (length, runs) in enumerate(zip(reuse.lengths.tolist(), reuse.runs(), strict=True)):
        above.extend(total - touched.up_to(last) for last, _ in runs)
        for last, blocks in runs:
            touched.add(last, -blocks)
            total -= blocks
        touched.add(touch, length)
        total += length
    counted = reuse.asked_runs
    return _corners(reuse, np.array(above, dtype=np.int64)[counted], reuse.blocks[counted])


def _corners(reuse: Reuse, above: Ids, blocks: Ids) -> Curve:
    """Every run makes the curve rise from the capacity `above` on: by a hit per block, for all of its blocks."""
    places = np.concatenate((above, above + blocks))
    bends = np.repeat([1, -1], len(above))
    capacities, where = np.unique(np.concatenate(([0], places)), return_inverse=True)
    slopes = np.zeros(len(capacities), dtype=np.int64)
    np.add.at(slopes, where[1:], bends)
    hits = np.concatenate(([0], np.cumsum(np.cumsum(slopes)[:-1] * np.diff(capacities))))
    return Curve(reuse, capacities, hits)


class _PrefixSums:
    """A Fenwick tree: a list of numbers whose prefix sums and single entries are both cheap to ask and to change."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)

    def add(self, index: int, amount: int) -> None:
        sums, place = self._sums, index + 1
        while place < len(sums):
            sums[place] += amount
            place += place & -place

    def up_to(self, index: int) -> int:
        """The sum of all numbers up to and with `index`."""
        sums, place, total = self._sums, index + 1, 0
        while place:
            total += sums[place]
            place &= place - 1
        return total
