"""Least recently used, simulated at one capacity: the policy that every other one is measured against."""

from __future__ import annotations

from longturn.lab.trace.reuse import Reuse


def lru(reuse: Reuse, capacity: int) -> float:
    """The block hit ratio of LRU with room for `capacity` blocks.

    A request first hits what is cached of its leading blocks; then all its blocks are the most recent ones, the deepest
    the oldest of them; then the oldest of all blocks go until the rest fits. So a leaf always goes first, and a request
    longer than the capacity leaves its leading blocks.
    """
    if capacity < 1:
        return 0.0
    room = int(reuse.scaled(capacity))
    cached: list[int] = []  # by the latest touch; always the leading ones of its blocks
    held = hits = oldest = 0
    for length, asked, runs in zip(reuse.lengths.tolist(), reuse.asked.tolist(), reuse.runs(), strict=True):
        for last, blocks in runs:
            hit = min(blocks, cached[last])
            cached[last] -= hit
            held -= hit
            hits += hit if asked else 0
        cached.append(length)
        held += length
        while held > room:
            evicted = min(cached[oldest], held - room)
            cached[oldest] -= evicted
            held -= evicted
            if held > room:
                oldest += 1
    return reuse.hit_ratio(hits)
