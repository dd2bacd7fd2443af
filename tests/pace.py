"""Limits of time that hold on a slow or busy machine too: they are stretched by how slow it is at that moment."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

TEXT = json.dumps([{"key": str(n), "value": [n] * 5} for n in range(300)])
USUAL = 0.033  # seconds of CPU for one `yardstick` on an idle core of a 2025 server, where the limits were set


def yardstick() -> float:
    """Seconds of CPU that a fixed piece of work takes here and now."""
    began = time.process_time()
    for _ in range(40):
        json.loads(json.dumps(json.loads(TEXT), sort_keys=True))
    return time.process_time() - began


def fastest(work: Callable[[], object], times: int = 5) -> float:
    """
    Seconds of CPU of the fastest run, as the machine of the limits would take them.

    Each run stands beside a yardstick of its own moment: a core shared with another program does less in the same
    time. On a faster machine the seconds are as measured.
    """
    gc.freeze()  # what other tests have left would be gone through again and again
    runs = []
    for _ in range(times):
        before = yardstick()
        began = time.process_time()
        work()
        took = time.process_time() - began
        runs.append(took / max(1, min(before, yardstick()) / USUAL))
    gc.unfreeze()
    return min(runs)
