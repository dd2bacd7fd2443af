"""The usage object of Anthropic's Messages: `input_tokens` *exclude* what was read from the cache or written to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.ledger import TokenUse


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a usage object. Counters that are missing count as 0.

    Of the top level only: what a server-side compaction took stands in `iterations` and is a request of its own.
    Raises LedgerError when the counts do not add up.
    """
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    computed = (usage.get("input_tokens") or 0) + written
    generated = usage.get("output_tokens_details") or {}
    return TokenUse(
        logical=read + computed,
        cached={"provider": read},
        computed=computed,
        output=usage.get("output_tokens") or 0,
        reasoning=generated.get("thinking_tokens") or 0,
        written=written,
    )


def joined(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """One usage object of a stream's two: the final one is cumulative, and repeats the prompt's counts only perhaps."""
    return {**start, **{name: value for name, value in end.items() if value is not None}}
