"""The lab's bounds: how long they take on whole traces, and how that grows.

    .venv/bin/python bench/lab_bounds.py [TRACE ...] [--json out.json]

All bounds are taken at 1%, 5%, 10% and 25% of a trace's different blocks; the one-pass curve is held against LRU
simulated at ten capacities. Then conversations of our own show how the time grows: the slope of the line through
log(seconds) over log(requests) is 1 where it is linear. CPU seconds of one core; `reuse` and `sample` without the time
that reading takes; the memory is the largest that the process has held.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from longturn.lab.bounds import infinite, lru, lru_curve, optimum, sample
from longturn.lab.trace import Blocks, TraceRequest, open_trace
from longturn.lab.trace.reuse import reuse

Result = TypeVar("Result")

SHARES = (0.01, 0.05, 0.10, 0.25)
RATE = 0.01
SIZES = tuple(2000 << doublings for doublings in range(7))
OPEN = 50
TURNS = 40


def timed(work: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    """What it gives, and the CPU seconds that it took."""
    began = time.process_time()
    result = work(*arguments)
    return result, time.process_time() - began


def whole_trace(path: Path) -> dict[str, Any]:
    """All bounds of one file."""
    trace = open_trace(path)
    _, reading = timed(lambda: sum(1 for _ in trace))
    found, reading_and_reuse = timed(reuse, trace)
    row: dict[str, Any] = {
        "trace": path.name,
        "requests": found.requests,
        "accesses": found.accesses,
        "unique": found.unique,
        "infinite": infinite(found),
    }
    seconds = {"read": reading, "reuse": reading_and_reuse - reading}
    for share in SHARES:
        capacity = int(found.unique * share)
        recent, seconds["lru"] = timed(lru, found, capacity)
        best, seconds["optimum"] = timed(optimum, found, capacity)
        row[f"at {share:.0%}"] = {"lru": recent, "optimum": best}
    curve, seconds["curve"] = timed(lru_curve, found)
    capacities = np.geomspace(10, curve.largest, 10).astype(int).tolist()
    row["curve against lru"] = max(abs(curve.hit_ratio(n) - lru(found, n)) for n in capacities)
    sampled, sampling = timed(sample, trace, RATE)
    seconds["sample"] = sampling - reading
    estimate = lru_curve(sampled)
    capacities = [int(found.unique * share) for share in SHARES]
    row[f"{RATE} sample against curve"] = max(abs(estimate.hit_ratio(n) - curve.hit_ratio(n)) for n in capacities)
    row["seconds"] = {name: round(value, 3) for name, value in seconds.items()}
    return row


class Conversations:
    """`requests` requests of conversations of `TURNS` turns, of which `OPEN` are open at a time."""

    name, unit = "conversations", 64

    def __init__(self, requests: int) -> None:
        self.notes: list[str] = []
        self._requests = requests

    def __iter__(self) -> Iterator[TraceRequest]:
        random = np.random.default_rng(0)
        chats = [np.arange(100) for _ in range(OPEN)]
        turns = [0] * OPEN
        for place in range(self._requests):
            chosen = int(random.integers(OPEN))
            if turns[chosen] == TURNS:
                chats[chosen], turns[chosen] = np.arange(100), 0
            new = int(random.integers(1 << 40)) + np.arange(random.integers(5, 100))
            chats[chosen] = np.concatenate((chats[chosen], new))
            turns[chosen] += 1
            blocks = Blocks.of(chats[chosen])
            yield TraceRequest(str(place), str(chosen), float(place), blocks, 64 * len(blocks), 0)


class Held:
    """A trace in memory, so that making it takes no part in the times."""

    def __init__(self, trace: Conversations) -> None:
        self.name, self.unit, self.notes = trace.name, trace.unit, trace.notes
        self._requests = list(trace)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self._requests)


def growth() -> dict[str, Any]:
    """Seconds by number of requests, and the slopes of their logarithms."""
    works = ("reuse", "lru", "optimum", "curve")
    seconds: dict[str, list[float]] = {work: [] for work in works}
    for size in SIZES:
        trace = Held(Conversations(size))
        found, spent = timed(reuse, trace)
        capacity = 20 * OPEN
        times = (spent, timed(lru, found, capacity)[1], timed(optimum, found, capacity)[1], timed(lru_curve, found)[1])
        for work, value in zip(works, times, strict=True):
            seconds[work].append(value)
    logs = np.log(SIZES)
    slopes = {work: float(np.polyfit(logs, np.log(values), 1)[0]) for work, values in seconds.items()}
    return {"requests": SIZES, "seconds": seconds, "slopes": slopes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for path in options.traces:
        rows.append(whole_trace(path))
        rows[-1]["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(json.dumps(rows[-1], indent=2))
    grown = growth()
    print(f"{'requests':>10}" + "".join(f"{work:>10}" for work in grown["seconds"]))
    for place, size in enumerate(SIZES):
        print(f"{size:>10,}" + "".join(f"{values[place]:>9.3f}s" for values in grown["seconds"].values()))
    print(f"{'slope':>10}" + "".join(f"{slope:>10.2f}" for slope in grown["slopes"].values()))
    if options.json:
        options.json.write_text(json.dumps({"traces": rows, "growth": grown}, indent=2) + "\n")


if __name__ == "__main__":
    main()
