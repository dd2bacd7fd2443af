"""The engines in the order that the numbers give, beside the published opinion, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from longturn.lab.compare.engines import BY_POLICY
from longturn.lab.compare.job import Floats, Outcome

# Engines whose mean time to first token differs by less than this share of it are level: nobody would feel it.
SAME_SHARE = 0.02
_RESAMPLES = 400

Flags = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True)
class Place:
    """One engine's place. ttft: mean seconds to the first token, modelled; behind: share by which it is slower than the
    best, low and high its 95% interval over sessions, None where there is only one; rank: 1 for the best and all that
    are level with it, and so on.
    """

    title: str
    policy: str
    ttft: float
    cached_share: float
    behind: float
    low: float | None
    high: float | None
    rank: int
    published: int | None

    @property
    def interval(self) -> str:
        """From low to high, for people."""
        return "-" if self.low is None else f"{self.low:+.1%} to {self.high:+.1%}"


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
    """places: best first; requests: that all of them served, over which the means are; correlation: Kendall's tau-b
    with the published order (None where all are level); matters: whether it makes a difference which policy is taken,
    one that anybody would feel and that other sessions would not turn; verdict: in a sentence.
    """

    places: list[Place]
    requests: int
    correlation: float | None
    disagreements: list[Disagreement]
    matters: bool
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "places": [vars(place) for place in self.places],
            "requests": self.requests,
            "kendall_tau": self.correlation,
            "disagreements": [vars(one) for one in self.disagreements],
            "policy_matters": self.matters,
            "verdict": self.verdict,
        }


def rank(outcomes: Sequence[Outcome], sessions: Sequence[str]) -> Ranking | None:
    """Rank serial outcomes of different policies on the same requests; sessions: that of each request, in order.

    Means are over the requests that none of them refused. None where there are not two policies, or no such request.
    """
    if len(outcomes) < 2 or not (served := np.logical_and.reduce([one.served for one in outcomes])).any():
        return None
    groups = np.unique(np.asarray(sessions)[served], return_inverse=True)[1]
    times = {one.job.policy: _common(one, one.ttft, served) for one in outcomes}
    means = {policy: float(values.mean()) for policy, values in times.items()}
    ordered = sorted(outcomes, key=lambda one: means[one.job.policy])
    best = ordered[0].job.policy
    places: list[Place] = []
    for outcome in ordered:
        policy = outcome.job.policy
        low, high = _interval(times[policy], times[best], groups)
        first = next((place for place in places if place.rank == places[-1].rank), None)
        # Level with the first of those before: too little to feel, or nothing that sessions drawn anew would not turn.
        level = first is not None and (
            means[policy] <= first.ttft * (1 + SAME_SHARE) or (first.rank == 1 and low is not None and low <= 0.0)
        )
        engine = BY_POLICY.get(policy)
        places.append(
            Place(
                engine.title if engine else policy,
                policy,
                means[policy],
                outcome.cached_share,
                means[policy] / means[best] - 1,
                low,
                high,
                first.rank if first is not None and level else len(places) + 1,
                engine.published if engine else None,
            )
        )
    published = [place for place in places if place.published is not None]
    return Ranking(
        places,
        int(served.sum()),
        _kendall([place.rank for place in published], [place.published or 0 for place in published]),
        _disagreements(published, {one.job.policy: one for one in outcomes}, served),
        places[-1].rank > 1,
        _verdict(places),
    )


def _verdict(places: list[Place]) -> str:
    last = places[-1]
    if last.rank == 1:
        why = (
            f"less than the {SAME_SHARE:.0%} that count as level"
            if last.behind <= SAME_SHARE
            else "which other sessions of the same kind could turn"
        )
        return f"The policy does not matter here: the slowest is {last.behind:.1%} behind the fastest, {why}."
    first = [place.title for place in places if place.rank == 1]
    return (
        f"{' and '.join(first)} {'is' if len(first) == 1 else 'are'} fastest; the slowest, {last.title}, takes "
        f"{last.behind:.0%} longer to the first token on average."
    )


def _common(outcome: Outcome, values: npt.NDArray[Number], served: Flags) -> npt.NDArray[Number]:
    """Of values per request that was served, those of the requests in `served`."""
    return values[served[outcome.served]]


def _interval(mine: Floats, best: Floats, groups: npt.NDArray[np.intp]) -> tuple[float | None, float | None]:
    """95% of the shares by which `mine` is behind `best` when sessions are drawn anew, with replacement.

    groups: the number of each request's session. None where there is one session only.
    """
    n = int(groups.max()) + 1
    if n < 2:
        return None, None
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


def _disagreements(places: Sequence[Place], outcomes: dict[str, Outcome], served: Flags) -> list[Disagreement]:
    found = []
    for better, worse in combinations(places, 2):
        assert better.published is not None
        assert worse.published is not None
        if better.rank < worse.rank and better.published > worse.published:
            found.append(_explained(better, worse, outcomes[better.policy], outcomes[worse.policy], served))
    return found


def _explained(better: Place, worse: Place, mine: Outcome, other: Outcome, served: Flags) -> Disagreement:
    """Which part of the time to first token is saved: computing, or bringing KV up to the device."""
    loading = [float(_common(one, one.loading, served).sum()) for one in (other, mine)]
    computing = [float(_common(one, one.ttft - one.loading, served).sum()) for one in (other, mine)]
    loaded = [int(_common(one, one.loaded, served).sum()) for one in (other, mine)]
    computed = [int(_common(one, one.computed, served).sum()) for one in (other, mine)]
    saved = {"device compute": computing[0] - computing[1], "transfer": loading[0] - loading[1]}
    resource = max(saved, key=saved.__getitem__)
    verb, tokens, seconds = (
        ("brings up", loaded, loading) if resource == "transfer" else ("computes", computed, computing)
    )
    explanation = (
        f"{worse.title} {verb} {tokens[0]:,} tokens in {seconds[0]:,.1f} s, {better.title} {tokens[1]:,} in "
        f"{seconds[1]:,.1f} s"
    )
    if resource == "device compute" and loaded[1] - loaded[0] > (computed[0] - computed[1]) / 2 > 0:
        explanation += f", with {loaded[1] - loaded[0]:,} more from below the device"
    return Disagreement(better.title, worse.title, resource, saved[resource], explanation)
