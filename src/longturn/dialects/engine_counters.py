"""Engines' own counters, as Prometheus pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from longturn.dialects.engines import Engine

NAMING = {"model_name", "engine", "engine_type", "pid", "engine_id", "dp_rank", "tp_rank", "pp_rank", "moe_ep_rank"}
"""Labels that tell whose counter it is, not what it counts: their series are added up."""

Counters = Mapping[str, Mapping[str, float]]
"""Name of a counter to its series, each by its labels as Prometheus writes them ("" without any)."""


def parse(text: str, engine: Engine) -> dict[str, dict[str, float]]:
    """The engine's counters in a page of metrics. Raises ValueError for what is none."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in engine.counters:
                labels = {name: value for name, value in sample.labels.items() if name not in NAMING}
                series = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
                values = found.setdefault(sample.name, {})
                values[series] = values.get(series, 0.0) + sample.value
    return found


def growth(before: Counters, after: Counters) -> dict[str, dict[str, float]]:
    """What each series of `after` has grown by. One that is new has grown from 0."""
    return {
        name: {labels: value - before.get(name, {}).get(labels, 0.0) for labels, value in series.items()}
        for name, series in after.items()
    }


def total(grown: Counters, alternatives: Sequence[Sequence[str]]) -> int | None:
    """Tokens counted by the first of `alternatives` (names that are added up) that is there; None if none is."""
    for names in alternatives:
        if present := [grown[name] for name in names if name in grown]:
            return round(sum(value for series in present for value in series.values()))
    return None
