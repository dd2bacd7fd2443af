"""The best that any cache of a given size could have done, had it known the future."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from longturn.lab.trace.reuse import Reuse
from longturn.lab.trace.tree import Run


def optimum(reuse: Reuse, capacity: int) -> float:
    """The largest block hit ratio of all ways to keep at most `capacity` blocks between one request and the next.

    Keeping a block from one touch to the next is an interval of time that is worth one hit, and between any two
    requests at most `capacity` intervals may be open. Choosing the most intervals under such a limit is solved by
    going through time and, wherever too many are open, giving up those that end last (Faigle and Nawijn, 1995, for
    whom capacity one is interval scheduling; Belady, 1966, for caches that must keep what was used last). Blocks that
    just came in may be given up too, which is the bypass.

    On a prefix tree a cached block only helps if all blocks above it are cached. That costs nothing: whoever touches a
    block touches those above it, so they are used again no later, and among equals the deepest can go first. The
    interval that ends last is then always at a leaf of what is kept.

    Where answers are cached too, being generated again is worth nothing to a block. An answer that repeats a cached one
    lets its blocks go in between while something below them stays, which no prefix cache can do: then this is a bound.
    """
    if capacity < 1:
        return 0.0
    room = int(reuse.scaled(capacity))
    due = [0] * len(reuse.lengths)  # kept blocks by the touch that asks for them next
    furthest: list[int] = []  # a heap of those touches, negated
    kept = hits = 0
    for touch, uses in enumerate(_next_uses(reuse)):
        hits += due[touch]
        kept -= due[touch]
        due[touch] = 0
        for use, blocks in uses:
            if not due[use]:
                heappush(furthest, -use)
            due[use] += blocks
            kept += blocks
        while kept > room:
            use = -furthest[0]
            dropped = min(due[use], kept - room)
            due[use] -= dropped
            kept -= dropped
            if not due[use]:
                heappop(furthest)
    return reuse.hit_ratio(hits)


def _next_uses(reuse: Reuse) -> Iterator[list[Run]]:
    """Of each touch, its blocks that are asked for at their next one: (the next touch, how many)."""
    touches = np.arange(len(reuse.lengths))
    counted = reuse.asked_runs
    uses, previous = np.repeat(touches, np.diff(reuse.ends, prepend=0))[counted], reuse.previous[counted]
    order = np.argsort(previous, kind="stable")
    ends = np.searchsorted(previous[order], touches, side="right")
    use, blocks = uses[order].tolist(), reuse.blocks[counted][order].tolist()
    for start, end in pairwise([0, *ends.tolist()]):
        yield list(zip(use[start:end], blocks[start:end], strict=True))
