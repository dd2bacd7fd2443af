"""`TokenUse`: what one request, or a sum of requests, contained, found cached and computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType
from typing import Any

import msgspec

from longturn.errors import LedgerError

TIERS = ("device", "host", "disk", "remote", "provider")
"""Where cached tokens can come from, nearest first."""


def _count(name: str, value: int) -> int:
    try:
        count = index(value)
    except TypeError:
        raise LedgerError(f"{name} must be a whole number of tokens, not {value!r}") from None
    if count < 0:
        raise LedgerError(f"{name} is {count}: token counts cannot be negative")
    return count


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Token counts of one request: `logical == cached + computed`, always.

    logical: tokens that the request contains.
    cached: tokens served from a prefix cache, by tier of `TIERS`. Kept as a read-only copy without the empty tiers.
    computed: tokens really prefilled.
    output: tokens generated, `reasoning` included.
    reasoning: tokens generated as hidden reasoning.
    written: tokens that a provider charged as cache write.

    Raises LedgerError for a count that is negative or not whole, for an unknown tier, and when counts do not add up.
    """

    logical: int
    cached: Mapping[str, int] = field(hash=False)
    computed: int
    output: int = 0
    reasoning: int = 0
    written: int = 0

    def __post_init__(self) -> None:
        for name in ("logical", "computed", "output", "reasoning", "written"):
            object.__setattr__(self, name, _count(name, getattr(self, name)))
        if unknown := sorted(set(self.cached) - set(TIERS)):
            raise LedgerError(f"unknown cache tier {', '.join(unknown)}: use one of {', '.join(TIERS)}")
        tiers = {tier: _count(f"cached {tier}", self.cached[tier]) for tier in TIERS if tier in self.cached}
        object.__setattr__(self, "cached", MappingProxyType({tier: n for tier, n in tiers.items() if n}))
        if self.logical != self.cached_total + self.computed:
            raise LedgerError(
                f"{self.logical} logical tokens are not {self.cached_total} cached + {self.computed} computed: "
                "check whether the prompt count of the source includes the cached tokens"
            )
        if self.reasoning > self.output:
            raise LedgerError(
                f"{self.reasoning} reasoning tokens exceed {self.output} output tokens: output must include reasoning"
            )

    @property
    def cached_total(self) -> int:
        """Cached tokens over all tiers."""
        return sum(self.cached.values())

    def __add__(self, other: TokenUse) -> TokenUse:
        return TokenUse(
            logical=self.logical + other.logical,
            cached={tier: self.cached.get(tier, 0) + other.cached.get(tier, 0) for tier in TIERS},
            computed=self.computed + other.computed,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            written=self.written + other.written,
        )

    # A read-only mapping can be neither pickled nor copied, and lines do travel between processes.
    def __reduce__(self) -> tuple[Any, ...]:
        return TokenUse.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """The counts as a JSON object; empty tiers are left out of `cached`."""
        return {
            "logical": self.logical,
            "cached": dict(self.cached),
            "computed": self.computed,
            "output": self.output,
            "reasoning": self.reasoning,
            "written": self.written,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TokenUse:
        """The inverse of `to_dict`; other keys are ignored. Raises LedgerError when it is no sound use."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise LedgerError(f"not a token use: {error}") from error


NO_USE = TokenUse(logical=0, cached={}, computed=0)
"""Nothing used yet: where sums start."""
