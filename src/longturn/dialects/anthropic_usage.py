"""The usage object of Anthropic's Messages: `input_tokens` *exclude* what was read from the cache or written to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longturn.ledger import RequestLine, TokenUse


@dataclass(frozen=True)
class Cached:
    """What prompt caching did with a prompt, in tokens: read from it, written to it for 5 minutes and for an hour."""

    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def written(self) -> int:
        """Tokens written to the cache."""
        return self.written_5m + self.written_1h


def prompt_usage(logical: int, cached: Cached, output: int = 1) -> dict[str, Any]:
    """The usage object of an answer that has so many tokens by now; logical: tokens of its prompt."""
    return {
        "input_tokens": logical - cached.read - cached.written,
        "cache_creation_input_tokens": cached.written,
        "cache_read_input_tokens": cached.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cached.written_5m,
            "ephemeral_1h_input_tokens": cached.written_1h,
        },
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": 0},
        "service_tier": "standard",
    }


def iteration(kind: str, usage: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of `usage.iterations`: one of the requests that an answer took. kind: message or compaction."""
    counts = (
        "input_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "cache_creation",
        "output_tokens",
    )
    return {"type": kind, **{name: usage[name] for name in counts}}


def usage(line: RequestLine, cached: Cached) -> dict[str, Any]:
    """The usage object of an answer: Anthropic's fields, and the ledger's line under `longturn`.

    The line says what the engine really found and computed, which may be more than the rules of prompt caching give.
    """
    counts = prompt_usage(line.use.logical, cached, line.use.output)
    return {**counts, "longturn": {**line.to_dict(), "written": cached.written}}


def use(usage: Mapping[str, Any]) -> TokenUse:
    """The token counts in a usage object. Counters that are missing count as 0.

    Longturn's own carries the tiers. Of the top level only: what a server-side compaction took stands in `iterations`
    and is a request of its own. Raises LedgerError when the counts do not add up.
    """
    line = usage.get("longturn")
    if line is not None:
        return TokenUse.from_dict(line)
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
