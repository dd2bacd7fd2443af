"""The results as rows: one per workload, case and metric, all engines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.peers.floors import Floors
from bench.peers.pools import POOLS
from bench.peers.run import Results
from bench.peers.samples import Figure, Metric, figure
from bench.peers.workloads import Workload

OURS = "longturn"


@dataclass(frozen=True)
class Row:
    """figures: by engine; floor: what the machine allows, if it can be said."""

    workload: Workload
    case: str
    metric: Metric
    figures: dict[str, Figure]
    floor: float | None

    @property
    def over_peer(self) -> float | None:
        """Our median over that of the best peer: below 1 is ahead where less is better, above 1 where more is."""
        peers = [one.median for engine, one in self.figures.items() if engine != OURS]
        best = (min if self.metric.lower else max)(peers, default=0.0)
        return self.figures[OURS].median / best if OURS in self.figures and best else None

    @property
    def over_floor(self) -> float | None:
        """Our median over the floor."""
        return self.figures[OURS].median / self.floor if OURS in self.figures and self.floor else None


def rows(results: Results, workloads: Sequence[Workload], floors: Floors | None) -> list[Row]:
    """In the order of the workloads, and of their first measurement."""
    found = []
    for workload in workloads:
        floor = workload.floor(floors) if floors else {}
        keys = dict.fromkeys((case, metric) for name, case, metric, _ in results.values if name == workload.name)
        for case, metric in keys:
            values = {key[3]: of for key, of in results.values.items() if key[:3] == (workload.name, case, metric)}
            figures = {engine: figure(repeats) for engine, repeats in values.items()}
            found.append(Row(workload, case, metric, figures, floor.get((case, metric))))
    return found


def as_json(found: Sequence[Row], results: Results, facts: dict[str, Any]) -> dict[str, Any]:
    """Everything, every single value included."""
    return {
        **facts,
        "cut": results.cut,
        "troubles": results.troubles,
        "rows": [
            {
                "workload": row.workload.name,
                "pools": row.workload.pools,
                "case": row.case,
                "metric": row.metric.name,
                "unit": row.metric.unit,
                "lower_is_better": row.metric.lower,
                "floor": row.floor,
                "longturn_over_best_peer": row.over_peer,
                "longturn_over_floor": row.over_floor,
                "figures": {engine: asdict(one) for engine, one in row.figures.items()},
                "values": {
                    engine: results.values[row.workload.name, row.case, row.metric, engine] for engine in row.figures
                },
            }
            for row in found
        ],
        "pools": {name: asdict(POOLS[name]) for name in dict.fromkeys(row.workload.pools for row in found)},
        "memory_bytes": _nested(results.memory),
        "start_seconds": _nested(results.starts),
        "others_share": _nested(results.others),
    }


def _nested(values: dict[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (outer, inner), value in values.items():
        nested.setdefault(outer, {})[inner] = value
    return nested
