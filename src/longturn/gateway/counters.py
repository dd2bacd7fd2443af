"""An engine's own counters of prompt tokens: read when a gateway starts, and again to compare them with the ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from longturn.dialects.engine_counters import parse, total
from longturn.dialects.engines import detect, metrics_paths

TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Counted:
    """What an engine has counted since it was started. at: unix seconds; None where it does not count that.

    engine: its name in `longturn.dialects.engines`; empty before it was seen.
    """

    upstream: str
    at: float
    engine: str
    logical: int | None
    cached: int | None


def read(upstream: str) -> Counted | None:
    """The counters of the engine at a URL; None where no known engine shows any. Never raises."""
    parts = urlsplit(upstream)
    pages = []
    with httpx.Client(base_url=f"{parts.scheme}://{parts.netloc}", timeout=TIMEOUT, trust_env=False) as client:
        for path in metrics_paths():
            try:
                answer = client.get(path)
            except (httpx.HTTPError, httpx.InvalidURL):
                continue
            if answer.is_success:
                pages.append(answer.text)
    engine = detect(pages, None)
    if engine is None:
        return None
    found = {}
    for page in pages:
        try:
            found.update(parse(page, engine))
        except ValueError:
            continue
    logical, cached, computed = (total(found, names) for names in (engine.logical, engine.cached, engine.computed))
    if logical is None and computed is not None:
        logical = computed + (cached or 0)
    return Counted(upstream, time.time(), engine.name, logical, cached)
