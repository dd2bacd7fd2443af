"""An engine's own counters, read from its Prometheus page before and after a run."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from longturn.dialects.engine_counters import Counters, parse
from longturn.dialects.engines import Engine

TIMEOUT = 10.0
"""Seconds that a page of metrics may take."""


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
