"""What is found out about two requests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

AROUND = 24
"""Characters shown ahead of a divergence, so that one sees where it is."""
SHOWN = 80


@dataclass(frozen=True)
class Divergence:
    """The first place where two requests differ.

    segment: place in render order, such as `system[0]`, or the name of a setting.
    json_path: of the value that differs: in the first request, or in the second where it is new there.
    offset: bytes (UTF-8) into that value up to which both agree.
    before, after: at most 80 characters of both around it; empty where one has nothing there.
    """

    segment: str
    json_path: str
    offset: int
    before: str
    after: str

    @classmethod
    def between(cls, segment: str, path: str, before: str, after: str) -> Divergence:
        """Where two texts at the same place part."""
        same = common(before, after)
        start = max(0, same - AROUND)
        shown = slice(start, start + SHOWN)
        return cls(segment, path, len(before[:same].encode(errors="replace")), before[shown], after[shown])


@dataclass(frozen=True)
class Lint:
    """Something about one request alone. path: JSON path, or `$`."""

    mechanism: str
    path: str
    message: str


@dataclass(frozen=True)
class Verdict:
    """Why the second request could not reuse what the first one left in the provider's cache.

    mechanism: one of `longturn.explain.MECHANISMS`, or `none`.
    first_divergence: None where the second request only appends.
    lost_tokens: tokens that were cached, or would have been, and had to be computed anew; an estimate unless both
        requests come with their usage.
    append_only: whether the second request's content begins with all of the first one's.
    intentional: the history was compacted on purpose: a cost, but no mistake.
    confidence: 0 to 1. evidence: what was seen, in one sentence. fix: what to do about it.
    lints: of the second request alone, whether or not they have to do with the miss.
    """

    provider: str
    mechanism: str
    first_divergence: Divergence | None
    lost_tokens: int
    append_only: bool
    fix: str
    confidence: float
    evidence: str
    intentional: bool = False
    lints: tuple[Lint, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"lints": [asdict(lint) for lint in self.lints]}


def common(before: str, after: str) -> int:
    """Characters of the longest common beginning."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[:middle] == after[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
