"""How much of what was possible a policy has got."""

from __future__ import annotations

SAME = 1e-9
"""Hit ratios that differ by less are equal: both sides may have been rounded differently."""


def gap_closed(policy: float, lru: float, optimum: float) -> float | None:
    """(policy - LRU) / (optimum - LRU), of three hit ratios on the same trace at the same capacity.

    0 is as good as LRU, 1 as good as possible, below 0 is worse than LRU. None where LRU is already as good as
    possible: then no policy can gain anything, and only what it loses is of interest.
    """
    room = optimum - lru
    return (policy - lru) / room if room > SAME else None
