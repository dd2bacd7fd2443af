"""Why an answer did not find what an earlier one had left: OpenAI's `prompt_cache_diagnostics`.

Of earlier requests only hashes and counts are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longturn.dialects.segments import Prompt, Segment
from longturn.explain import Exchange
from longturn.ledger import TokenUse

Json = dict[str, Any]

SETTINGS = {
    "parallel_tool_calls": "tools_changed",
    "format": "text_format_changed",
    "effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
}
"""A setting -> what is said when it has changed, in the order in which changes are looked for."""


@dataclass(frozen=True)
class Record:
    """A request. segments: hash of each, with its level; settings: hashes; reusable: tokens that it left to be read."""

    model: str
    key: str | None
    segments: tuple[tuple[str, bytes], ...]
    settings: Mapping[str, bytes]
    reusable: int

    @classmethod
    def of(cls, prompt: Prompt, key: str | None, reusable: int) -> Record:
        """The record of a request. key: what sets its prefixes apart, if anything does."""
        segments = tuple((segment.level, _hash(segment.rendered)) for segment in prompt.segments)
        settings = {name: _hash(setting.value) for name, setting in prompt.settings.items()}
        return cls(prompt.model, key, segments, settings, reusable)

    def common(self, other: Record) -> int:
        """Segments that both begin with."""
        pairs = enumerate(zip(self.segments, other.segments, strict=False))
        return next((at for at, (a, b) in pairs if a != b), min(len(self.segments), len(other.segments)))


def diagnosed(earlier: Record | None, record: Record, prompt: Prompt, tokens: int, read: int) -> Json:
    """What became of the earlier request's prefix. tokens: of this prompt, of which `read` came from the cache."""
    if earlier is None:
        return {"type": "comparison_response_not_found"}
    if read and read >= earlier.reusable:
        return {"type": "cache_hit"}
    common = earlier.common(record)
    found = _reason(earlier, record, prompt, common)
    if found is None:
        # It begins with all of the earlier one, which has expired, was evicted, or was too short to be kept.
        return {"type": "unavailable"}
    reason, kept = found
    use = TokenUse(logical=tokens, cached={}, computed=tokens)
    missed = tokens - Exchange(prompt, {}, use=use).tokens(kept)
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": missed,
        "comparison_reusable_tokens": earlier.reusable,
    }


def _reason(earlier: Record, record: Record, prompt: Prompt, common: int) -> tuple[str, int] | None:
    """The first thing that has changed, and how many segments are unharmed by it."""
    if earlier.model != record.model:
        return "model_changed", 0
    if earlier.key != record.key:
        return "prompt_cache_key_changed", 0
    if _tools(earlier) != _tools(record):
        return "tools_changed", common
    for name, reason in SETTINGS.items():
        if earlier.settings.get(name) != record.settings.get(name):
            return reason, 0
    known = {hashed for _, hashed in earlier.segments}
    if any(_is_new_compaction(segment, known) for segment in prompt.segments):
        return "context_compacted", common
    if common < len(earlier.segments):
        return "input_changed", common
    if earlier.settings.get("service_tier") != record.settings.get("service_tier"):
        return "service_tier_changed", 0
    return None


def _is_new_compaction(segment: Segment, known: set[bytes]) -> bool:
    return segment.kind == "compaction" and _hash(segment.rendered) not in known


def _tools(record: Record) -> list[bytes]:
    return [hashed for level, hashed in record.segments if level == "tools"]


def _hash(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
