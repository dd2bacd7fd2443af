"""One run of one policy, as a value that can be sent to another process, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from longturn.engine.cost import CostModel, StepSpan
from longturn.lab.compare.routing import replay_routed
from longturn.lab.compare.source import Source
from longturn.lab.replay import Replay, replay_hits
from longturn.lab.replay.load import Load

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """What to run. question: which part of the comparison wants it; label: the point on that part's axis.

    device_tokens, host_tokens: of each replica; load: with a clock under this load, else serially; router, replicas:
    serially behind a router.
    """

    question: str
    label: Any
    policy: str
    options: dict[str, Any]
    device_tokens: int
    host_tokens: int
    source: Source
    load: Load | None = None
    router: str | None = None
    replicas: int = 1


@dataclass(frozen=True)
class Outcome:
    """What one job found.

    totals: as of a Replay; served: bool per request of the trace (of the replay's end where it had a clock): whether it
    was not refused; computed, ttft: per request that was served, in order: tokens prefilled, and seconds to the first
    token, modelled; device_seconds and the rest: sums over all requests (seconds, FLOPs, byte-seconds,
    bytes); cpu_seconds: taken by this implementation of the policy, measured, in serial runs.
    """

    job: Job
    totals: dict[str, Any]
    served: npt.NDArray[np.bool_]
    computed: npt.NDArray[np.int64]
    ttft: Floats
    premises: list[str]
    seconds: float | None = None
    device_flops: float = 0.0
    device_seconds: float = 0.0
    device_byte_seconds: float = 0.0
    host_byte_seconds: float = 0.0
    transfer_bytes: dict[str, int] = field(default_factory=dict)
    transfer_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def cached_share(self) -> float:
        """Cached of logical tokens."""
        return float(self.totals["cached"] / max(self.totals["logical"], 1))


def run(job: Job, cost: CostModel) -> Outcome:
    """Do a job. Raises ConfigError or TraceError."""
    trace = job.source.open()
    if job.load is not None:
        from longturn.lab.replay.timed import replay_timed

        return _timed(
            job,
            replay_timed(trace, job.policy, job.options, job.device_tokens, job.host_tokens, cost, job.load),
            cost,
        )
    if job.router is not None:
        return _serial(
            job,
            replay_routed(trace, job.policy, job.options, job.device_tokens, job.host_tokens, job.router, job.replicas),
            cost,
        )
    return _serial(job, replay_hits(trace, job.policy, job.options, job.device_tokens, job.host_tokens), cost)


def _timed(job: Job, replay: Replay, cost: CostModel) -> Outcome:
    served = [one for one in replay.served if one.resources is not None and one.ttft is not None]
    resources = [one.resources for one in served if one.resources is not None]
    return Outcome(
        job,
        replay.totals(),
        np.array([not one.rejected for one in replay.served]),
        np.array([one.logical - sum(one.cached.values()) for one in served]),
        np.array([one.ttft for one in served]),
        replay.premises,
        replay.seconds,
        sum(one.device_flops for one in resources),
        sum(one.device_seconds for one in resources),
        sum(one.device_byte_seconds for one in resources),
        replay.host_byte_seconds,
        dict(replay.transfer_bytes),
        sum(cost.transfer_seconds(link, n) for link, n in replay.transfer_bytes.items()),
    )


def _serial(job: Job, replay: Replay, cost: CostModel) -> Outcome:
    """Without a clock: each request alone on the machine, its load from below and then its prefill."""
    served = [one for one in replay.served if not one.rejected]
    computed, compute, load, flops = [], [], [], 0.0
    for one in served:
        start = sum(one.cached.values())
        spans = [StepSpan(one.logical - start, start, prompt=True)]
        below = (start - one.cached.get("device", 0)) * cost.shape.token_bytes
        computed.append(one.logical - start)
        compute.append(cost.step_seconds(spans) + cost.request_seconds)
        load.append((below, cost.transfer_seconds("device-host", below) if below else 0.0))
        flops += cost.flops(spans)
    n_bytes = sum(below for below, _ in load)
    return Outcome(
        job,
        replay.totals(),
        np.array([not one.rejected for one in replay.served]),
        np.array(computed, dtype=np.int64),
        np.array(compute) + np.array([seconds for _, seconds in load]),
        replay.premises,
        device_flops=flops,
        device_seconds=float(sum(compute)),
        transfer_bytes={"device-host": n_bytes} if n_bytes else {},
        transfer_seconds=sum(seconds for _, seconds in load),
        cpu_seconds=replay.cpu_seconds,
    )
