"""Gemini's `usageMetadata`: the prompt's count *includes* the cached tokens, the answer's *excludes* its thoughts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.ledger import TokenUse


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a `usageMetadata` object; of a stream give the last. A missing count is 0.

    Results of tools that the provider ran itself are input beside the prompt. Implicit caching charges no writes.
    Raises LedgerError when the counts do not add up.
    """
    logical = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
    cached = usage.get("cachedContentTokenCount") or 0
    thoughts = usage.get("thoughtsTokenCount") or 0
    return TokenUse(
        logical=logical,
        cached={"provider": cached},
        computed=logical - cached,
        output=(usage.get("candidatesTokenCount") or 0) + thoughts,
        reasoning=thoughts,
    )
