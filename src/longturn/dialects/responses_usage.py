"""The usage object of OpenAI's Responses, both ways: `input_tokens` *include* the cached and the written ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.dialects.openai_usage import CacheCount
from longturn.ledger import RequestLine, TokenUse


def usage(line: RequestLine, count: CacheCount | None = None) -> dict[str, Any]:
    """The usage object of an answer: all fields present, and the ledger's line under `longturn`.

    count: what the provider whose cache is kept here would have read and written; None: what the engine did.
    """
    use = line.use
    count = count or CacheCount.of(use)
    details: dict[str, Any] = {"cached_tokens": count.read, "cache_write_tokens": count.written}
    if count.by_life is not None:
        lives = {f"ttl_{life}_tokens": tokens for life, tokens in count.by_life.items()}
        details["cache_write_tokens_details"] = lives
    return {
        "input_tokens": use.logical,
        "input_tokens_details": details,
        "output_tokens": use.output,
        "output_tokens_details": {"reasoning_tokens": use.reasoning},
        "total_tokens": use.logical + use.output,
        "longturn": line.to_dict(),
    }


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a usage object. Details that are missing count as 0; Longturn's own carries the tiers.

    Raises LedgerError when the counts do not add up.
    """
    line = usage.get("longturn")
    if line is not None:
        return TokenUse.from_dict(line)
    given = usage.get("input_tokens_details") or {}
    generated = usage.get("output_tokens_details") or {}
    logical = usage.get("input_tokens") or 0
    cached = given.get("cached_tokens") or 0
    return TokenUse(
        logical=logical,
        cached={"provider": cached},
        computed=logical - cached,
        output=usage.get("output_tokens") or 0,
        reasoning=generated.get("reasoning_tokens") or 0,
        written=given.get("cache_write_tokens") or 0,
    )
