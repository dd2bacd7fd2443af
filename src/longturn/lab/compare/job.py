"""One run of one policy, as a value that can be sent to another process, and what came out of it."""

from __future__ import annotations

from collections.abc import Iterable
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

    totals: as of a Replay; served: bool per request of the trace: whether it was not refused. Per request that was
    served, in order: computed, tokens prefilled; ttft, seconds to the first token, modelled; and, in serial runs,
    loaded, tokens brought up to the device, and loading, the seconds of the ttft that this takes. device_seconds and
    the rest: sums over all requests (seconds, FLOPs, byte-seconds, bytes); cpu_seconds: taken by this implementation of
    the policy, measured, in serial runs.
    """

    job: Job
    totals: dict[str, Any]
    served: npt.NDArray[np.bool_]
    computed: npt.NDArray[np.int64]
    ttft: Floats
    premises: list[str]
    loaded: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    loading: Floats = field(default_factory=lambda: np.zeros(0))
    seconds: float | None = None
    device_flops: float = 0.0
    device_seconds: float = 0.0
    device_byte_seconds: float = 0.0
    host_byte_seconds: float = 0.0
    transfer_bytes: dict[str, int] = field(default_factory=dict)
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
            job, replay_timed(trace, job.policy, job.options, job.device_tokens, job.host_tokens, cost, job.load)
        )
    if job.router is not None:
        return _serial(
            job,
            replay_routed(trace, job.policy, job.options, job.device_tokens, job.host_tokens, job.router, job.replicas),
            cost,
        )
    return _serial(job, replay_hits(trace, job.policy, job.options, job.device_tokens, job.host_tokens), cost)


def _timed(job: Job, replay: Replay) -> Outcome:
    served = [one for one in replay.served if one.resources is not None and one.ttft is not None]
    resources = [one.resources for one in served if one.resources is not None]
    return Outcome(
        job,
        replay.totals(),
        np.array([not one.rejected for one in replay.served]),
        np.array([one.logical - sum(one.cached.values()) for one in served], dtype=np.int64),
        np.array([one.ttft for one in served], dtype=np.float64),
        replay.premises,
        seconds=replay.seconds,
        device_flops=sum(one.device_flops for one in resources),
        device_seconds=sum(one.device_seconds for one in resources),
        device_byte_seconds=sum(one.device_byte_seconds for one in resources),
        host_byte_seconds=replay.host_byte_seconds,
        transfer_bytes=dict(replay.transfer_bytes),
    )


def _serial(job: Job, replay: Replay, cost: CostModel) -> Outcome:
    """Without a clock: each request alone on the machine, its load from below and then its prefill."""
    served = [one for one in replay.served if not one.rejected]
    starts = [sum(one.cached.values()) for one in served]
    spans = [StepSpan(one.logical - start, start, True) for one, start in zip(served, starts, strict=True)]
    prefill = np.array([cost.step_seconds([span]) + cost.request_seconds for span in spans], dtype=np.float64)
    moved = {
        "device-host": _tokens(start - one.cached.get("device", 0) for one, start in zip(served, starts, strict=True)),
        "host-disk": _tokens(one.cached.get("disk", 0) for one in served),
    }
    loading, transfers = np.zeros(len(served)), {}
    for link, tokens in moved.items():
        if tokens.any():
            n_bytes = tokens * cost.shape.token_bytes
            transfers[link] = int(n_bytes.sum())
            loading += [cost.transfer_seconds(link, n) if n else 0.0 for n in n_bytes.tolist()]
    return Outcome(
        job,
        replay.totals(),
        np.array([not one.rejected for one in replay.served], dtype=bool),
        np.array([span.n for span in spans], dtype=np.int64),
        prefill + loading,
        replay.premises,
        moved["device-host"],
        loading,
        device_flops=cost.flops(spans),
        device_seconds=float(prefill.sum()),
        transfer_bytes=transfers,
        cpu_seconds=replay.cpu_seconds,
    )


def _tokens(counts: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(counts, dtype=np.int64)
