"""The page of the documentation: what was measured and how, a chart and a table per workload."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bench.peers.chart import NAMES, chart
from bench.peers.pools import POOLS
from bench.peers.report import OURS, Row
from bench.peers.run import Results
from bench.peers.table import cell, floor_cell, ratio

PAGE, CHARTS = "peers.md", "peers"

_HOW = """\
# Longturn beside llama.cpp and vLLM

One run of `python -m bench.peers` on one machine: the same model (SmolLM2-135M-Instruct, bf16), the same client and the
same token ids for all engines, the same bytes of KV cache. All are up at once and one is awake at a time; each repeat
of a workload is run on every engine before the next repeat, so that drift of the machine falls on all of them.

llama.cpp is compiled for this processor, vLLM is its CPU build on all cores; besides sizes of caches they have their
defaults. vLLM has no host tier on a CPU: its one pool gets the bytes of both tiers. Longturn has a disk tier
besides, which the others do not have. Answers that a client sends back are other tokens than were generated, as after
tokenising text anew: no engine can reuse the KV of what it generated itself.

Figures: median [p95] ± half the distance between the repeats' medians. `ours / best peer` and `ours / floor` compare
medians; below 1 is ahead for times, above 1 for rates. The floor is arithmetic: FLOPs over the measured rate of matrix
products, bytes over the measured bandwidth of memory, nothing else.
"""


def write(folder: Path, found: Sequence[Row], results: Results, engines: Sequence[str], note: str) -> None:
    """Write PAGE and the folder CHARTS into `folder`, which is made."""
    charts = folder / CHARTS
    charts.mkdir(parents=True, exist_ok=True)
    parts = [_HOW, _premises(results, note)]
    for name, group in groupby(found, key=lambda row: row.workload.name):
        rows = list(group)
        charts.joinpath(f"{name}.svg").write_text(chart(rows, note), encoding="utf-8")
        workload, pools = rows[0].workload, POOLS[rows[0].workload.pools]
        shown = f"KV: {pools.device_tokens:,} tokens on the device, {pools.host_bytes >> 20:,} MiB in host memory"
        parts.append(f"## {workload.title}\n\n{shown} ({pools.title}).\n\n![{workload.title}]({CHARTS}/{name}.svg)\n")
        parts.append("\n".join(_table(rows, engines)) + "\n")
    folder.joinpath(PAGE).write_text("\n".join(parts), encoding="utf-8")


def _premises(results: Results, note: str) -> str:
    shares = [share for values in results.others.values() for share in values]
    busy = f" Other programs took {statistics.median(shares):.0%} of the processors (median)." if shares else ""
    return "\n".join([note + busy, *(f"\n- {trouble}" for trouble in results.troubles), results.cut, ""])


def _table(rows: Sequence[Row], engines: Sequence[str]) -> Iterator[str]:
    ours = OURS in engines
    columns = ["", "", *(NAMES[engine] for engine in engines), "floor", *(["ours / best peer", "ours / floor"] * ours)]
    yield _line(columns)
    yield _line(["---", "---", *["---:"] * (len(columns) - 2)])
    for row in rows:
        cells = [cell(row.figures.get(engine), row.metric) for engine in engines]
        ratios = [ratio(row.over_peer), ratio(row.over_floor)] * ours
        yield _line([row.case, row.metric.name, *cells, floor_cell(row), *ratios])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
