"""Turns the results of `make bench` into docs/figures.json, from which the README's tables are made.

.venv/bin/python bench/figures.py && make docs
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures.json"


def read(name: str) -> dict[str, Any]:
    """One result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def main() -> None:
    """Write docs/figures.json."""
    micro, plain, tiers, bits = read("micro"), read("transformers"), read("tiers"), read("few_bits")
    turn, rounds = tiers["second_turn_over_6000"], tiers["round_robin_16_on_4"]
    names = {"cold": "nothing (cold)", "device": "device", "host": "host memory", "disk": "disk, after kill -9"}
    figures = {
        "note": (
            f"Measured on {datetime.now(UTC):%Y-%m-%d} by `make bench`: SmolLM2-135M in {plain['dtype']}, "
            f"{os.cpu_count()} cores of {processor()}, a shared machine (load {plain['load_before']:.1f} before). "
            "Medians; the two sides of a ratio were measured in one run, in turn."
        ),
        "tables": [
            {
                "title": "Second turn: 50 new tokens over a history of 6,000, on a server",
                "columns": ["history comes from", "TTFT, ms", "cold is so many times slower"],
                "rows": [
                    [shown, turn["ttft_ms"][tier], turn["cold_over"].get(tier, "")] for tier, shown in names.items()
                ],
            },
            {
                "title": "16 conversations of 3,000 tokens round-robin, device pool for 4",
                "columns": ["", "value"],
                "rows": [
                    ["reusable tokens served from cache", f"{rounds['share_of_reusable_from_cache']:.1%}"],
                    ["TTFT of first turns, ms", rounds["cold_ttft_ms_p50"]],
                    ["TTFT of later turns, ms", rounds["later_ttft_ms_p50"]],
                ],
            },
            {
                "title": "The runner and plain transformers, tokens/s",
                "columns": ["", "Longturn", "transformers", "ratio"],
                "rows": [
                    [name, row["longturn"], row["transformers"], row["ratio"]]
                    for name, row in plain["tokens_per_s"].items()
                ],
            },
            {
                "title": "Weights of few bits: perplexity on a fixed text, and ms of a decode step",
                "columns": ["`--weights`", "perplexity", *bits["decode"]],
                "rows": [
                    [
                        name,
                        f"{value:.3f} ({value / bits['perplexity']['model'] - 1:+.2%})",
                        *(f"{row[name]:.1f}" for row in bits["decode"].values()),
                    ]
                    for name, value in bits["perplexity"].items()
                ],
            },
            {
                "title": "The engine's own work, ms",
                "columns": ["", "ms"],
                "rows": [
                    ["lookup of 100,000 cached tokens", micro["lookup_100k_ms"]],
                    [
                        "scheduler and cache, decode step at batch 8",
                        micro["decode_step_batch_8_ms"]["scheduler_and_cache"],
                    ],
                    ["the same with sampling and detokenising", micro["decode_step_batch_8_ms"]["all"]],
                ],
            },
        ],
    }
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def processor() -> str:
    """The name of this machine's processor."""
    for line in (
        Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    ):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
