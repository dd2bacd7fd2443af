"""Anthropic's `diagnostics`: where a request parts from an earlier one, told from hashes of both."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from longturn.dialects.segments import LEVELS, Prompt

Json = dict[str, Any]


@dataclass(frozen=True)
class Digest:
    """What is remembered of a request: hashes and sizes, no content.

    model: and how it is run; settings: what else shapes the prompt; segments: a hash for each, by level; sizes: bytes
    up to the end of each; tokens: of the whole prompt.
    """

    model: bytes
    settings: bytes
    segments: tuple[tuple[bytes, ...], ...]
    sizes: tuple[int, ...]
    tokens: int

    @classmethod
    def of(cls, prompt: Prompt, tokens: int) -> Digest:
        """The digest of a prompt of so many tokens."""
        settings = {name: setting.value for name, setting in prompt.settings.items()}
        speed = settings.pop("speed", None)
        return cls(
            _hash([prompt.model, speed]),
            _hash(settings),
            tuple(tuple(_hash(s.rendered) for s in prompt.segments if s.level == level) for level in LEVELS),
            tuple(accumulate(len(segment.text) for segment in prompt.segments)),
            tokens,
        )

    def behind(self, segments: int) -> int:
        """About how many tokens follow the first `segments` segments."""
        before = self.sizes[segments - 1] if segments else 0
        return round(self.tokens * (1 - before / max(self.sizes[-1], 1)))


def miss_reason(old: Digest | None, new: Digest) -> Json | None:
    """Why `new` could not reuse all of `old`, as Anthropic says it; None where it only goes on from there."""
    if old is None:
        return {"type": "previous_message_not_found"}
    if old.model != new.model:
        return _missed("model_changed", old, 0)
    at = 0
    for level, before, after in zip(LEVELS, old.segments, new.segments, strict=True):
        if level == "messages" and old.settings != new.settings:
            return {"type": "unavailable"}
        same = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        shortened = len(before) > len(after) or (level != "messages" and len(before) != len(after))
        if same is not None or shortened:
            kept = min(len(before), len(after)) if same is None else same
            return _missed(f"{level}_changed", old, at + kept)
        at += len(before)
    return None


def _missed(kind: str, old: Digest, segments: int) -> Json:
    return {"type": kind, "cache_missed_input_tokens": old.behind(segments)}


def _hash(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
