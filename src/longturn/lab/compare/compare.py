"""The whole comparison: which runs answer which question, done in parallel, and their results put together."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from longturn.engine.cost import CostModel
from longturn.errors import ConfigError
from longturn.lab.bounds import gap_closed, infinite, lru, lru_curve, optimum
from longturn.lab.compare.engines import BY_POLICY, ENGINES, HOST_POLICIES
from longturn.lab.compare.job import Job, Outcome, run
from longturn.lab.compare.ranking import Ranking, rank
from longturn.lab.compare.routing import ROUTERS
from longturn.lab.compare.source import Source
from longturn.lab.replay.load import Load
from longturn.lab.trace.reuse import Reuse, reuse

# Device sizes as shares of all different tokens of the trace.
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5)
CONCURRENCY = (1, 4, 16)
THINK = (0.0, 1.0, 4.0)
# A device must hold the longest request, and a little more for what engines reserve.
_LEAST = 1.25
_CURVE_POINTS = 150


@dataclass(frozen=True)
class Question:
    """What is asked.

    policies: name to options; shares: device sizes as shares of all different tokens; host_ratio: host
    memory over device memory; timed_requests: how many requests are replayed on a virtual clock, 0 for none; replicas:
    behind the routers, 0 for no such runs.
    """

    policies: dict[str, dict[str, Any]]
    shares: tuple[float, ...] = SHARES
    host_ratio: float = 2.0
    timed_requests: int = 300
    replicas: int = 4


@dataclass
class Comparison:
    """All that was found.

    sizes: device sizes in tokens; main: the one that most questions are asked at; bounds: per size `infinite`,
    `optimum` and `lru`; curve: LRU at every size that matters, as (tokens, share). Both count whole blocks that are
    hit, as shares of all prompt tokens, which is what the policies' shares are of.
    """

    trace: str
    requests: int
    logical: int
    different: int
    unit: int
    sizes: list[int]
    main: int
    question: Question
    cost: CostModel
    bounds: dict[int, dict[str, float]]
    curve: list[tuple[int, float]]
    outcomes: list[Outcome] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ranking: Ranking | None = None

    def of(self, question: str) -> list[Outcome]:
        """The outcomes that answer one question, in the order they were asked."""
        return [one for one in self.outcomes if one.job.question == question]

    def gap(self, outcome: Outcome) -> float | None:
        """How much of the way from LRU to the optimum a policy without host memory has gone."""
        bounds = self.bounds[outcome.job.device_tokens]
        return gap_closed(outcome.cached_share, bounds["lru"], bounds["optimum"])

    @property
    def premises(self) -> list[str]:
        """What holds for all of it: of the serial runs, and of the modelled times."""
        said = [premise for one in (*self.of("device"), *self.of("host")) for premise in one.premises]
        return [
            f"times are {self.cost.provenance}",
            f"host memory is {self.question.host_ratio:g} times the device's, for engines that use any",
            *dict.fromkeys(said),
        ]

    def premises_of(self, question: str) -> list[str]:
        """What else holds for all answers to one question."""
        said = [one.premises for one in self.of(question)]
        return [premise for premise in (said or [[]])[0] if all(premise in other for other in said)]

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return {
            "trace": self.trace,
            "requests": self.requests,
            "logical": self.logical,
            "different_tokens": self.different,
            "unit": self.unit,
            "device_sizes": self.sizes,
            "main_size": self.main,
            "bounds": {str(size): bounds for size, bounds in self.bounds.items()},
            "curve": self.curve,
            "runs": [_to_json(one, self.gap(one) if one.job.question == "device" else None) for one in self.outcomes],
            "failed": self.failed,
            "ranking": self.ranking.to_json() if self.ranking else None,
            "premises": self.premises,
        }


def compare(
    source: Source,
    question: Question,
    cost: CostModel,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Run everything, over `workers` processes (all cores unless given), reporting (runs done, runs in all).

    A run that fails is named in `failed`; the others stand. Raises TraceError, or ConfigError when there is nothing to
    run or every run has failed.
    """
    trace = source.open()
    requests = [(one.session, one.prompt_tokens, one.prompt_tokens + one.output_tokens) for one in trace]
    if not requests:
        raise ConfigError(f"{trace.name} has no requests that could be compared: take a larger share of it")
    found = reuse(trace, answers=True)
    longest = max(length for _, _, length in requests)
    sizes = _sizes(found, longest, question.shares)
    logical = sum(length for _, length, _ in requests)
    comparison = Comparison(
        trace.name,
        len(requests),
        logical,
        found.unique * found.unit,
        found.unit,
        sizes,
        sizes[len(sizes) // 2],
        question,
        cost,
        {size: _bounds(found, size, logical) for size in sizes},
        _curve(found, logical),
    )
    jobs = _jobs(comparison, source, longest, Counter(session for session, _, _ in requests))
    outcomes: dict[int, Outcome] = {}
    failed: dict[int, str] = {}
    # Ctrl-C reaches every process of a terminal: workers just end, and what has not begun is given up.
    with ProcessPoolExecutor(workers or os.cpu_count(), None, signal.signal, (signal.SIGINT, signal.SIG_DFL)) as pool:
        futures = {pool.submit(run, job, cost): number for number, job in enumerate(jobs)}
        progress(0, len(jobs))
        try:
            for done, future in enumerate(as_completed(futures), 1):
                number = futures[future]
                try:
                    outcomes[number] = future.result()
                except Exception as error:
                    job = jobs[number]
                    failed[number] = f"{job.policy} ({job.question} {job.label}): {error or type(error).__name__}"
                progress(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    comparison.outcomes = [outcomes[number] for number in sorted(outcomes)]
    comparison.failed = [failed[number] for number in sorted(failed)]
    if not outcomes:
        raise ConfigError(f"every run has failed, the first one as {comparison.failed[0]}")
    engines = [
        one for one in comparison.of("host") if one.job.device_tokens == comparison.main and one.job.policy in BY_POLICY
    ]
    comparison.ranking = rank(engines, [session for session, _, _ in requests])
    return comparison


def _sizes(found: Reuse, longest: int, shares: Sequence[float]) -> list[int]:
    """In tokens, whole blocks, ascending."""
    least = -(-int(longest * _LEAST + 1) // found.unit) * found.unit
    return sorted({max(int(share * found.unique) * found.unit, least) for share in shares})


def _bounds(found: Reuse, size: int, logical: int) -> dict[str, float]:
    blocks = size // found.unit
    ratios = {"infinite": infinite(found), "optimum": optimum(found, blocks), "lru": lru(found, blocks)}
    return {bound: _of_tokens(found, ratio, logical) for bound, ratio in ratios.items()}


def _curve(found: Reuse, logical: int) -> list[tuple[int, float]]:
    points = lru_curve(found).points(_CURVE_POINTS)
    return [(blocks * found.unit, _of_tokens(found, ratio, logical)) for blocks, ratio in points]


def _of_tokens(found: Reuse, ratio: float, logical: int) -> float:
    """A block hit ratio as a share of all tokens: last blocks that are filled in part count whole among the blocks."""
    return ratio * (found.accesses * found.unit / logical)


def _jobs(comparison: Comparison, source: Source, longest: int, turns: Counter[str]) -> list[Job]:
    """Every run; turns: how many requests each session has."""
    question, main = comparison.question, comparison.main
    ratio = question.host_ratio
    host = int(main * ratio)
    some = source.with_sessions(turns, question.timed_requests)
    part = min(question.timed_requests / comparison.requests, 1.0)
    engines = {
        engine.policy: question.policies[engine.policy] for engine in ENGINES if engine.policy in question.policies
    }
    jobs: list[Job] = []

    def add(
        question: str, label: Any, policy: str, options: dict[str, Any], device: int, host: int, **more: Any
    ) -> None:
        host = host if policy in HOST_POLICIES else 0
        jobs.append(Job(question, label, policy, options, device, host, **{"source": source, **more}))

    def timed(question: str, label: Any, policy: str, options: dict[str, Any], load: Load) -> None:
        # So many sessions at once must find room, and yet the share of all that is kept be like the main size's.
        device = max(int(main * part), int(longest * _LEAST) + 1)
        add(question, label, policy, options, device, int(device * ratio), source=some, load=load)

    for policy, options in question.policies.items():
        for size in comparison.sizes:
            add("device", size, policy, options, size, 0)
            add("host", size, policy, options, size, int(size * ratio))
    for policy, options in engines.items():
        for apart in (False, True):
            alone = replace(source, apart=apart)
            add("sharing", "apart" if apart else "as it is", policy, options, main, host, source=alone)
        if question.replicas:
            for router in ROUTERS:
                device = max(main // question.replicas, int(longest * _LEAST) + 1)
                add(
                    "routing",
                    router,
                    policy,
                    options,
                    device,
                    int(device * ratio),
                    router=router,
                    replicas=question.replicas,
                )
        if question.timed_requests:
            for sessions in CONCURRENCY:
                timed("concurrency", sessions, policy, options, Load(sessions))
            for think in THINK:
                timed("think", think, policy, options, Load(CONCURRENCY[-1], think))
    return jobs


def _to_json(outcome: Outcome, gap: float | None) -> dict[str, Any]:
    job = outcome.job
    quantiles = (
        {f"ttft_p{q}": float(np.quantile(outcome.ttft, q / 100)) for q in (50, 95, 99)} if len(outcome.ttft) else {}
    )
    return {
        "question": job.question,
        "label": job.label,
        "policy": job.policy,
        "options": job.options,
        "device_tokens": job.device_tokens,
        "host_tokens": job.host_tokens,
        "cached_share": outcome.cached_share,
        "gap_closed": gap,
        "totals": outcome.totals,
        "times": quantiles,
        "resources": {
            "device_flops": outcome.device_flops,
            "device_seconds": outcome.device_seconds,
            "device_byte_seconds": outcome.device_byte_seconds,
            "host_byte_seconds": outcome.host_byte_seconds,
            "transfer_bytes": outcome.transfer_bytes,
            "cpu_seconds": outcome.cpu_seconds,
        },
    }
