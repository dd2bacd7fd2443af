"""How many tokens a part will have, before any provider has counted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from longturn.conversation.item import Item, Kind

RATIOS: Mapping[Kind, float] = MappingProxyType(
    {
        "system": 4.2,
        "tools": 4.0,
        "text": 3.8,
        "reasoning": 4.0,
        "call": 3.2,
        "result": 2.9,
        "file": 3.0,
        "summary": 3.8,
    }
)
"""Bytes of UTF-8 per token. Tool results of coding agents have 2.8 characters per token, prose in English about 4."""
FRAMES: Mapping[Kind, int] = MappingProxyType(
    {"system": 4, "tools": 0, "text": 4, "reasoning": 4, "call": 12, "result": 8, "file": 8, "summary": 4}
)
"""Tokens of roles, names and ids around a part."""
FILE_TOKENS = 1500
"""What a picture or document costs, whatever its bytes: providers count its pixels or pages."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens from bytes, at fixed ratios: items must not change because an estimate was bettered; `Calibration` is."""

    ratios: Mapping[Kind, float] = field(default_factory=lambda: RATIOS, hash=False)

    def tokens(self, kind: Kind, size: int) -> int:
        """Of a part that has `size` bytes of UTF-8."""
        if kind == "file":
            return FILE_TOKENS
        return FRAMES[kind] + round(size / self.ratios[kind])


@dataclass(frozen=True, slots=True)
class Calibration:
    """What providers reported against what was estimated, of the latest requests of one model.

    reported, estimated: sums of tokens in which a request counts `FADE` times what the one after it does.
    """

    reported: float = 0.0
    estimated: float = 0.0

    def with_request(self, reported: int, estimated: int) -> Calibration:
        """After one more request; one whose figures are not positive tells nothing."""
        if reported <= 0 or estimated <= 0:
            return self
        return Calibration(FADE * self.reported + reported, FADE * self.estimated + estimated)

    @property
    def scale(self) -> float:
        """What estimates are to be multiplied with; 1 before anything was reported."""
        return self.reported / self.estimated if self.estimated else 1.0

    def expected(self, items: Sequence[Item], known: int = 0, reported: int = 0) -> int:
        """Tokens of the next request, which sends `items`.

        known: how many of them, from the first, the latest request had, answer included, when nothing was edited since;
        reported: what that request and its answer had, as the provider counted. Then only what came since is estimated.
        """
        return reported + round(self.scale * sum(item.tokens for item in items[known:]))


FADE = 0.8
