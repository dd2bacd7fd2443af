"""OpenAI's usage object, both ways. Its prompt_tokens *include* the cached ones, as `logical` does.

Stands apart from the requests so that who only reads usage does not load pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longturn.ledger import RequestLine, TokenUse


@dataclass(frozen=True)
class CacheCount:
    """Tokens of a prompt that were read from a cache and written to it, and the written ones by time to live."""

    read: int
    written: int = 0
    by_life: Mapping[str, int] | None = None

    @classmethod
    def of(cls, use: TokenUse) -> CacheCount:
        """What really happened."""
        return cls(use.cached_total, use.written)

    def __add__(self, other: CacheCount) -> CacheCount:
        mine, its = self.by_life or {}, other.by_life or {}
        by_life = {life: mine.get(life, 0) + its.get(life, 0) for life in [*mine, *its]}
        return CacheCount(self.read + other.read, self.written + other.written, by_life or None)


def usage(line: RequestLine, count: CacheCount | None = None) -> dict[str, Any]:
    """The usage object of an answer: OpenAI's fields, all present, and the ledger's line under `longturn`.

    count: what the provider whose cache is kept here would have read and written; None: what the engine did.
    """
    use = line.use
    count = count or CacheCount.of(use)
    return {
        "prompt_tokens": use.logical,
        "completion_tokens": use.output,
        "total_tokens": use.logical + use.output,
        "prompt_tokens_details": {"cached_tokens": count.read, "cache_write_tokens": count.written},
        "completion_tokens_details": {"reasoning_tokens": use.reasoning},
        "longturn": line.to_dict(),
    }


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a usage object from any server that speaks this dialect.

    Longturn's own carries the tiers; of others it is only known that the provider had the tokens cached. Raises
    LedgerError when the counts do not add up.
    """
    line = usage.get("longturn")
    if line is not None:
        return TokenUse.from_dict(line)
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    logical = usage.get("prompt_tokens") or 0
    # DeepSeek and Kimi count hits beside the details, DeepSeek under a name of its own.
    cached = prompt.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens") or 0
    return TokenUse(
        logical=logical,
        cached={"provider": cached},
        computed=logical - cached,
        output=usage.get("completion_tokens") or 0,
        reasoning=completion.get("reasoning_tokens") or 0,
        written=prompt.get("cache_write_tokens") or prompt.get("cache_creation_input_tokens") or 0,
    )
