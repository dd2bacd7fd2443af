"""The engines in the order that the numbers give, beside the published opinion, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from longturn.lab.compare.engines import BY_POLICY
from longturn.lab.compare.job import Floats, Outcome

# Engines whose mean time to first token differs by less than this share of it are level: nobody would feel it.
SAME_SHARE = 0.02
_RESAMPLES = 400


@dataclass(frozen=True)
class Place:
    """One engine's place. ttft: mean seconds to the first token, modelled; behind: share by which it is slower than the
    best, low and high its 95% interval over sessions; rank: 1 for the best and all that are level with it, and so on.
    """

    title: str
    policy: str
    ttft: float
    cached_share: float
    behind: float
    low: float
    high: float
    rank: int
    published: int | None


@dataclass(frozen=True)
class Disagreement:
    """Two engines whose order is the other way round than published, and the resource that makes it so."""

    better: str
    worse: str
    resource: str
    saved_seconds: float
    explanation: str


@dataclass(frozen=True)
class Ranking:
    """places: best first; correlation: Kendall's tau-b with the published order (None where all are level); verdict: in
    a sentence; matters: whether which policy is taken makes a difference that anybody would feel.
    """

    places: list[Place]
    correlation: float | None
    disagreements: list[Disagreement]
    matters: bool
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "places": [vars(place) for place in self.places],
            "kendall_tau": self.correlation,
            "disagreements": [vars(one) for one in self.disagreements],
            "policy_matters": self.matters,
            "verdict": self.verdict,
        }


def rank(outcomes: Sequence[Outcome], sessions: Sequence[str]) -> Ranking:
    """Rank serial outcomes of different policies on the same requests; sessions: that of each request, in order.

    Means are over the requests that none of them refused.
    """
    served = _served_by_all(outcomes)
    groups = np.unique(np.asarray(sessions)[served], return_inverse=True)[1]
    times = {one.job.policy: _aligned(one, served) for one in outcomes}
    means = {policy: float(values.mean()) for policy, values in times.items()}
    best = min(means, key=means.__getitem__)
    ordered = sorted(outcomes, key=lambda one: means[one.job.policy])
    places: list[Place] = []
    for outcome in ordered:
        policy = outcome.job.policy
        behind = means[policy] / means[best] - 1
        low, high = _interval(times[policy], times[best], groups)
        # Level with the one before: too little to feel, or no difference that sessions drawn anew would not turn.
        level = bool(places) and (
            _level(means[policy], means[places[-1].policy]) or (places[-1].rank == 1 and low <= 0.0)
        )
        engine = BY_POLICY.get(policy)
        places.append(
            Place(
                engine.title if engine else policy,
                policy,
                means[policy],
                outcome.cached_share,
                behind,
                low,
                high,
                places[-1].rank if level else len(places) + 1,
                engine.published if engine else None,
            )
        )
    published = [place for place in places if place.published is not None]
    spread = places[-1].ttft / places[0].ttft - 1
    matters = spread > SAME_SHARE
    return Ranking(
        places,
        _kendall([place.rank for place in published], [place.published or 0 for place in published]),
        _disagreements(published, {one.job.policy: one for one in outcomes}),
        matters,
        _verdict(places, spread, matters),
    )


def _verdict(places: list[Place], spread: float, matters: bool) -> str:
    if not matters:
        return (
            f"The policy does not matter here: the slowest is {spread:.1%} behind the fastest, less than the "
            f"{SAME_SHARE:.0%} that count as level."
        )
    first = [place.title for place in places if place.rank == 1]
    return (
        f"{' and '.join(first)} {'is' if len(first) == 1 else 'are'} fastest; the slowest, {places[-1].title}, takes "
        f"{spread:.0%} longer to the first token on average."
    )


def _served_by_all(outcomes: Sequence[Outcome]) -> Any:
    masks = [one.served for one in outcomes]
    return np.logical_and.reduce(masks)


def _aligned(outcome: Outcome, served: Any) -> Floats:
    whole = np.full(len(outcome.served), np.nan)
    whole[outcome.served] = outcome.ttft
    aligned: Floats = whole[served]
    return aligned


def _level(one: float, other: float) -> bool:
    return abs(one - other) <= SAME_SHARE * max(one, other)


def _interval(mine: Floats, best: Floats, groups: Any) -> tuple[float, float]:
    """95% of the shares by which `mine` is behind `best` when sessions are drawn anew, with replacement."""
    n = int(groups.max()) + 1 if len(groups) else 0
    if n < 2:
        return (float("nan"), float("nan"))
    mine_sums, best_sums = np.bincount(groups, mine, n), np.bincount(groups, best, n)
    draws = np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))
    shares = mine_sums[draws].sum(1) / best_sums[draws].sum(1) - 1
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def _kendall(mine: Sequence[int], other: Sequence[int]) -> float | None:
    """Kendall's tau-b (Kendall 1945): 1 for the same order, -1 for the reverse; ties in either count for neither."""
    agree = mine_ties = other_ties = 0
    pairs = list(combinations(range(len(mine)), 2))
    for i, j in pairs:
        a, b = np.sign(mine[i] - mine[j]), np.sign(other[i] - other[j])
        agree += int(a * b)
        mine_ties += a == 0
        other_ties += b == 0
    scale = float(np.sqrt(float(len(pairs) - mine_ties) * float(len(pairs) - other_ties)))
    return agree / scale if scale else None


def _disagreements(places: Sequence[Place], outcomes: dict[str, Outcome]) -> list[Disagreement]:
    found = []
    for better, worse in combinations(places, 2):
        assert better.published is not None
        assert worse.published is not None
        if better.rank < worse.rank and better.published > worse.published:
            found.append(_explained(better, worse, outcomes[better.policy], outcomes[worse.policy]))
    return found


def _explained(better: Place, worse: Place, mine: Outcome, other: Outcome) -> Disagreement:
    """Which part of the time to first token is saved: computing, or moving KV."""
    saved = {
        "device compute": other.device_seconds - mine.device_seconds,
        "transfer": other.transfer_seconds - mine.transfer_seconds,
    }
    resource = max(saved, key=saved.__getitem__)
    if resource == "transfer":
        moved = [sum(one.transfer_bytes.values()) for one in (other, mine)]
        seconds = (other.transfer_seconds, mine.transfer_seconds)
        explanation = (
            f"{worse.title} moves {moved[0] / 1e9:,.1f} GB of KV between tiers in {seconds[0]:,.1f} s, {better.title} "
            f"{moved[1] / 1e9:,.1f} GB in {seconds[1]:,.1f} s"
        )
    else:
        tokens = [int(one.computed.sum()) for one in (other, mine)]
        explanation = (
            f"{worse.title} computes {tokens[0]:,} tokens in {other.device_seconds:,.1f} s, {better.title} "
            f"{tokens[1]:,} in {mine.device_seconds:,.1f} s"
        )
        from_host = mine.totals["by_tier"].get("host", 0) - other.totals["by_tier"].get("host", 0)
        if from_host > (tokens[0] - tokens[1]) / 2 > 0:
            explanation += f", with {from_host:,} more from host memory"
    return Disagreement(better.title, worse.title, resource, saved[resource], explanation)
