"""What the engine does besides the model, by Longturn's own counters."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.peers.samples import Metric

SHARE = Metric("longturn's steps outside the model", "of 1")


@dataclass(frozen=True)
class Counters:
    """Seconds since the start."""

    model: float
    outside: float

    def share_since(self, before: Counters) -> float:
        """Of the time of steps, what was not the model: scheduler, cache, sampling, detokenising."""
        model, outside = self.model - before.model, self.outside - before.outside
        return outside / (model + outside) if model + outside else 0.0


async def read(http: httpx.AsyncClient) -> Counters | None:
    """None of an engine that does not tell."""
    response = await http.get("/metrics", timeout=10)
    if not response.is_success:
        return None
    samples = (one for family in text_string_to_metric_families(response.text) for one in family.samples)
    values = {one.name: one.value for one in samples if one.name.startswith("longturn_")}
    model, outside = (values.get(f"longturn_{name}_seconds_total") for name in ("model", "overhead"))
    return None if model is None or outside is None else Counters(model, outside)
