"""How long replays of a trace take, how much memory, and how both grow with the number of requests.

    python bench/lab_speed.py TRACE [--policy NAME ...] [--share 0.05] [--json OUT]

Each policy replays the first eighth, quarter, half and all of the trace's requests, serially, each in a process of its
own, with a device of `share` of the trace's different blocks. Times are CPU seconds of reading and replaying; the slope
is that of a straight line through log(seconds) over log(requests): 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from longturn.cache.policies.registry import POLICIES
from longturn.lab.replay import replay_hits
from longturn.lab.trace import First, open_trace
from longturn.lab.trace.reuse import reuse

PARTS = (8, 4, 2, 1)


def replayed(path: Path, n: int, policy: str, device_tokens: int) -> dict[str, Any]:
    """One replay of the first `n` requests: seconds of CPU and of wall, peak memory in MiB, share cached."""
    wall, cpu = time.perf_counter(), time.process_time()
    totals = replay_hits(First(open_trace(path), n), policy, {}, device_tokens).totals()
    return {
        "policy": policy,
        "requests": n,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "cached_share": totals["cached"] / totals["logical"],
    }


def slope(points: list[tuple[int, float]]) -> float:
    """Of the least-squares line through the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--policy", action="append", choices=[name for name in POLICIES if name != "none"])
    parser.add_argument("--share", type=float, default=0.05, help="device size, of the trace's different blocks")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    trace = open_trace(wanted.trace)
    found = reuse(trace)
    device, n = int(found.unique * wanted.share) * found.unit, len(found.lengths)
    print(
        f"{trace.name}: {n:,} requests, {found.accesses:,} block accesses, {found.unique:,} different blocks of "
        f"{found.unit} tokens; {device:,} tokens on the device"
    )
    rows: list[dict[str, Any]] = []
    for policy in wanted.policy or ("sglang", "vllm"):
        mine = []
        for part in PARTS:
            # A process each, so that peak memory is its own.
            with ProcessPoolExecutor(1) as pool:
                mine.append(pool.submit(replayed, wanted.trace, n // part, policy, device).result())
        rows += mine
        last, growth = mine[-1], slope([(row["requests"], row["cpu_seconds"]) for row in mine])
        print(
            f"{policy:28} {last['cpu_seconds']:6.1f} s CPU, {last['wall_seconds']:6.1f} s wall, "
            f"{last['peak_mib']:5.0f} MiB, cached {last['cached_share']:.3f}, slope {growth:.2f}"
        )
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
