"""An engine's own counters, read from its Prometheus page before and after a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from longturn.lab.live.engines import Engine

TIMEOUT = 10.0
"""Seconds that a page of metrics may take."""

NAMING = {"model_name", "engine", "engine_type", "pid", "engine_id", "dp_rank", "tp_rank", "pp_rank", "moe_ep_rank"}
"""Labels that tell whose counter it is, not what it counts: their series are added up."""

Counters = Mapping[str, Mapping[str, float]]
"""Name of a counter to its series, each by its labels as Prometheus writes them ("" without any)."""


@dataclass(frozen=True, slots=True)
class Page:
    """What was read: counters, or a sentence that says why there are none."""

    counters: Counters
    trouble: str = ""


async def fetch(client: httpx.AsyncClient, path: str) -> str | None:
    """The text of a metrics page; None where there is none. Raises httpx.HTTPError if the server is not there."""
    response = await client.get(path, timeout=TIMEOUT)
    return response.text if response.is_success else None


async def read(client: httpx.AsyncClient, engine: Engine) -> Page:
    """The engine's counters that the table names. Never raises."""
    if not engine.prefix:
        return Page({}, "of this server no metrics are known: name its engine with --engine")
    try:
        text = await fetch(client, engine.metrics_path)
        counters = None if text is None else parse(text, engine)
    except httpx.HTTPError as error:
        return Page({}, f"{engine.metrics_path} could not be read: {type(error).__name__} {error}".rstrip())
    except ValueError as error:
        return Page({}, f"{engine.metrics_path} is not in Prometheus' format: {error}")
    if not counters:
        option = f": start the server with {engine.metrics_option}" if engine.metrics_option else ""
        return Page({}, f"{engine.metrics_path} has no counters of {engine.name}{option}")
    return Page(counters)


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
