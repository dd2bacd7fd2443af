"""The usage object of OpenAI's Responses: `input_tokens` *include* the cached and the written ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.ledger import TokenUse


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a usage object. Details that are missing count as 0.

    Raises LedgerError when the counts do not add up.
    """
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
