"""Gemini's `usageMetadata`: the prompt's count *includes* the cached tokens, the answer's *excludes* its thoughts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.ledger import RequestLine, TokenUse


def usage(use: TokenUse, cached: int, line: RequestLine | None = None) -> dict[str, Any]:
    """The `usageMetadata` of an answer, whole or so far.

    cached: how much of the prompt counts as cached under Gemini's rules. line: the ledger's, once there is one; it goes
    under `longturn`, with all that the cache gave.
    """
    found = {
        "promptTokenCount": use.logical,
        "cachedContentTokenCount": cached,
        "candidatesTokenCount": use.output - use.reasoning,
        "thoughtsTokenCount": use.reasoning,
        "totalTokenCount": use.logical + use.output,
        "promptTokensDetails": [_text(use.logical)],
        "cacheTokensDetails": [_text(cached)] if cached else [],
    }
    return found if line is None else {**found, "longturn": line.to_dict()}


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a `usageMetadata` object; of a stream give the last. A missing count is 0.

    Results of tools that the provider ran itself are input beside the prompt. Implicit caching charges no writes.
    Longturn's own usage carries the tiers. Raises LedgerError when the counts do not add up.
    """
    line = usage.get("longturn")
    if line is not None:
        return TokenUse.from_dict(line)
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


def _text(count: int) -> dict[str, Any]:
    return {"modality": "TEXT", "tokenCount": count}
