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
    """
    if capacity < 1:
        return 0.0
    room = int(reuse.scaled(capacity))
    due = [0] * len(reuse.lengths)  # kept blocks by the request that uses them next
    furthest: list[int] = []  # a heap of those requests, negated
    kept = hits = 0
    for request, uses in enumerate(_next_uses(reuse)):
        hits += due[request]
        kept -= due[request]
        due[request] = 0
        for user, blocks in uses:
            if not due[user]:
                heappush(furthest, -user)
            due[user] += blocks
            kept += blocks
        while kept > room:
            user = -furthest[0]
            dropped = min(due[user], kept - room)
            due[user] -= dropped
            kept -= dropped
            if not due[user]:
                heappop(furthest)
    return reuse.hit_ratio(hits)


def _next_uses(reuse: Reuse) -> Iterator[list[Run]]:
    """Of each request, its blocks that are used again: (the request that uses them next, how many)."""
    requests = len(reuse.lengths)
    users = np.repeat(np.arange(requests), np.diff(reuse.ends, prepend=0))
    order = np.argsort(reuse.previous, kind="stable")
    ends = np.searchsorted(reuse.previous[order], np.arange(requests), side="right")
    user, blocks = users[order].tolist(), reuse.blocks[order].tolist()
    for start, end in pairwise([0, *ends.tolist()]):
        yield list(zip(user[start:end], blocks[start:end], strict=True))
