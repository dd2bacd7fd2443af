"""The most that any prefix cache can hit."""

from __future__ import annotations

from longturn.lab.trace.reuse import Reuse


def infinite(reuse: Reuse) -> float:
    """The block hit ratio of a cache that never evicts."""
    return reuse.hit_ratio(int(reuse.blocks[reuse.asked_runs].sum()))
