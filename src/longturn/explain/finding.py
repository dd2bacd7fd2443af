"""What a detector reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longturn.explain.pair import Pair
from longturn.explain.verdict import Divergence


@dataclass(frozen=True)
class Finding:
    """A cause that fits two requests.

    evidence: one sentence; confidence: 0 to 1.
    at: where it is seen, if that is not the first difference in content.
    kept: segments of the earlier request that could still be reused, if that is not up to that difference.
    """

    evidence: str
    confidence: float
    at: Divergence | None = None
    kept: int | None = None
    intentional: bool = False


Detector = Callable[[Pair], Finding | None]
