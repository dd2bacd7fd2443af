"""Logprobs in the two shapes that OpenAI's endpoints give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# OpenAI's value for what is next to impossible: JSON has no minus infinity.
LEAST = -9999.0


@dataclass(frozen=True)
class TokenLogprob:
    """One answer token as text, its natural-log probability, and the most likely alternatives, best first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` of a chat choice or chunk."""
    return {
        "content": [
            _entry(entry.token, entry.logprob) | {"top_logprobs": [_entry(token, value) for token, value in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """The `logprobs` of a completion choice or chunk; `offset` is the number of characters that came before it."""
    tops = [{token: max(value, LEAST) for token, value in entry.top} for entry in entries]
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [max(entry.logprob, LEAST) for entry in entries],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }


def _entry(token: str, logprob: float) -> dict[str, Any]:
    # Part of a character reads as U+FFFD; its true bytes are lost in the text, and null says so.
    known = "\ufffd" not in token
    return {"token": token, "logprob": max(logprob, LEAST), "bytes": list(token.encode()) if known else None}
