"""Modelled against measured times to the first token: the same held-out workload on the virtual clock and for real.

    python bench/lab_timed.py [--repeats 3] [--concurrency 4] [--json OUT]

Needs a profile of this machine: `longturn lab calibrate` first, on a quiet machine. The workload is generated with a
seed that calibration does not use; several policies serve it, as they would behind `longturn serve --policy`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
from longturn.lab.replay import Replay
from longturn.lab.replay.load import Load
from longturn.lab.replay.real import replay_real
from longturn.lab.replay.timed import replay_timed
from longturn.lab.trace.generate import Generated, Workload

HELD_OUT = Workload(
    sessions=10, turns=5, system_tokens=300, user_tokens=120, output_tokens=40, think=0, branching=0.1, seed=2718
)
DEVICE_TOKENS, HOST_TOKENS = 12_000, 24_000
POLICIES = ("longturn", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    trace = Generated(HELD_OUT)
    cost = CostModel(load_model_profile("smollm2-135m"), load_hardware_profile("local"))
    load = Load(wanted.concurrency, max_running=16)
    print(cost.provenance)
    rows: list[dict[str, Any]] = []
    for policy in POLICIES:
        modelled = times(replay_timed(trace, policy, {}, DEVICE_TOKENS, HOST_TOKENS, cost, load))
        runs = [times(replay_real(trace, policy, {}, DEVICE_TOKENS, HOST_TOKENS, load)) for _ in range(wanted.repeats)]
        measured = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        errors = [abs(modelled[name] / measured[name] - 1) for name in measured]
        row = {
            "policy": policy,
            "requests": len(measured),
            "measured_ms": statistics.median(measured.values()) * 1e3,
            "modelled_ms": statistics.median(modelled.values()) * 1e3,
            "error_of_median": statistics.median(modelled.values()) / statistics.median(measured.values()) - 1,
            "median_error": statistics.median(errors),
            "p90_error": float(np.quantile(errors, 0.9)),
        }
        rows.append(row)
        print(
            f"{policy:10} {row['requests']} requests, median TTFT measured {row['measured_ms']:.0f} ms, modelled "
            f"{row['modelled_ms']:.0f} ms ({row['error_of_median']:+.1%}); error of each request: median "
            f"{row['median_error']:.1%}, 90% under {row['p90_error']:.1%}"
        )
    if wanted.json:
        wanted.json.write_text(json.dumps({"provenance": cost.provenance, "rows": rows}, indent=1))
    return 0


def times(replay: Replay) -> dict[str, float]:
    """Seconds to the first token by request."""
    return {one.id: one.ttft for one in replay.served if one.ttft is not None}


if __name__ == "__main__":
    sys.exit(main())
