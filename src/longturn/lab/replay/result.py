"""What a replay says of every request, and in sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longturn.cache.policies.registry import POLICIES
from longturn.ledger import Resources, TokenUse


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a replay, in tokens.

    cached: tokens reused per tier; reported: what the engine's own usage would say; None for a request that the engine
    refuses. ttft, total: seconds from arrival, and resources, where the replay has a clock.
    """

    id: str
    logical: int
    cached: Mapping[str, int]
    reported: int | None
    output: int
    ttft: float | None = None
    total: float | None = None
    resources: Resources | None = None

    @property
    def rejected(self) -> bool:
        """Whether the engine would refuse the request."""
        return self.reported is None


@dataclass
class Replay:
    """A whole replay. seconds: how long the workload took, where there was a clock; cpu_seconds: what the replay itself
    took of this machine, nearly all of it in the policy; host_byte_seconds, transfer_bytes: of all requests together,
    where there was a clock; premises: one sentence each, to be printed with every figure of it."""

    trace: str
    policy: str
    options: dict[str, Any]
    mode: str
    device_tokens: int
    host_tokens: int
    premises: list[str] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    seconds: float | None = None
    cpu_seconds: float = 0.0
    host_byte_seconds: float = 0.0
    transfer_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def use(self) -> TokenUse:
        """The sum over all requests that were not refused."""
        cached: dict[str, int] = {}
        logical = output = 0
        for one in self.served:
            if not one.rejected:
                logical, output = logical + one.logical, output + one.output
                for tier, n in one.cached.items():
                    cached[tier] = cached.get(tier, 0) + n
        return TokenUse(logical, cached, logical - sum(cached.values()), output=output)

    def totals(self) -> dict[str, Any]:
        """logical, cached, computed, by_tier and rejected, in tokens (rejected: requests)."""
        use = self.use
        return {
            "logical": use.logical,
            "cached": sum(use.cached.values()),
            "computed": use.computed,
            "by_tier": dict(use.cached),
            "output": use.output,
            "rejected": sum(one.rejected for one in self.served),
        }

    def times(self) -> dict[str, float]:
        """Quantiles of the time to the first token, and the length of it all, in seconds; empty without a clock."""
        ttft = sorted(one.ttft for one in self.served if one.ttft is not None)
        if not ttft or self.seconds is None:
            return {}
        at = {f"ttft_p{share}": ttft[min(len(ttft) * share // 100, len(ttft) - 1)] for share in (50, 95, 99)}
        return {**at, "seconds": self.seconds}

    def to_json(self) -> dict[str, Any]:
        """The object that `longturn lab replay --json` prints."""
        refused = POLICIES[self.policy].refused
        return {
            "trace": self.trace,
            "policy": self.policy,
            "options": self.options,
            "mode": self.mode,
            "device_tokens": self.device_tokens,
            "host_tokens": self.host_tokens or None,
            "cached_tokens": [refused if one.reported is None else one.reported for one in self.served],
            "totals": self.totals(),
            "times": self.times(),
            "premises": self.premises,
        }
