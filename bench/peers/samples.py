"""What a workload measures, and how repeats become figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from longturn.lab.wire import Reply


@dataclass(frozen=True)
class Metric:
    """unit: of its values; lower: whether less is better."""

    name: str
    unit: str
    lower: bool = True


TTFT = Metric("time to first token", "s")
FILL = Metric("first turn, time to first token", "s")
RATE = Metric("tokens per second, all streams", "1/s", lower=False)
CACHED = Metric("share of reusable tokens from cache", "", lower=False)
WHOLE = Metric("all of it", "s")
IDLE_GAP = Metric("between tokens, nothing else running", "s")
BUSY_GAP = Metric("between tokens while a prompt is computed", "s")
BUSY_GAP_P99 = Metric("the same, p99 of each repeat", "s")
BUSY_GAP_MAX = Metric("the same, longest of each repeat", "s")
BUSY_OVER_IDLE = Metric("p99 while a prompt is computed / idle median", "x")


@dataclass(frozen=True)
class Sample:
    """One value. case: which of the workload's questions it answers, such as a length."""

    case: str
    metric: Metric
    value: float


@dataclass(frozen=True)
class Figure:
    """Values of one case, metric and engine over all repeats.

    spread: how far the repeats' own medians lie apart, as a share of the median; None with less than two repeats.
    """

    median: float
    p95: float
    spread: float | None
    values: int
    repeats: int


def figure(repeats: Sequence[Sequence[float]]) -> Figure:
    """Pool the repeats, each a list of at least one value."""
    pooled = [value for values in repeats for value in values]
    middle, medians = statistics.median(pooled), [statistics.median(values) for values in repeats]
    spread = (max(medians) - min(medians)) / middle if len(repeats) > 1 and middle else None
    return Figure(middle, percentile(pooled, 95), spread, len(pooled), len(repeats))


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation, of at least one value."""
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def first_tokens(case: str, replies: Iterable[Reply], metric: Metric = TTFT) -> list[Sample]:
    """Times to the first token of the requests that were answered."""
    return [Sample(case, metric, reply.ttft_s) for reply in replies if not reply.error]


def cached(case: str, replies: Iterable[Reply]) -> list[Sample]:
    """One value: cached over reusable tokens, of what was answered; none where nothing was reusable or reported."""
    told = [reply for reply in replies if not reply.error and reply.cached_tokens is not None]
    reusable = sum(reply.labels["reusable"] for reply in told)
    # Blocks may reach a few tokens beyond what was meant, by words that happen to be the same.
    found = sum(min(reply.cached_tokens or 0, reply.labels["reusable"]) for reply in told)
    return [Sample(case, CACHED, found / reusable)] if reusable else []
