"""A bookkeeper to whom exchanges are told, and requests to tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from longturn.gateway.account import Bookkeeper, Told
from longturn.gateway.answer import Answer
from longturn.gateway.entries import Entry
from longturn.gateway.frames import Answered, Asked, Ended
from longturn.ledger import RequestLine

FILLER = "The quick brown fox jumps over the lazy dog. " * 300


class Desk:
    """A bookkeeper to whom exchanges are told, a minute apart."""

    def __init__(self, dialect: str = "openai-chat", prices: str | None = "openai", **options: Any) -> None:
        self.keeper = Bookkeeper(prices, **options)
        self.dialect = dialect
        self.now = 1_800_000_000.0

    def tell(
        self,
        body: Mapping[str, Any] | bytes,
        usage: Mapping[str, Any] | None = None,
        *,
        key: str | None = "k",
        session: str | None = None,
        status: int = 200,
        model: str | None = None,
        wait: float = 60.0,
        outcome: str = "complete",
        ended: bool = True,
        betas: str = "",
    ) -> tuple[RequestLine, Entry]:
        self.now += wait
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.keeper.account(
            Told(
                Asked(1, self.now, self.dialect, "http://up", "/x", key, session, "", betas),
                data,
                Answered(1, status, "application/json", ""),
                Answer(usage=usage, model=model, finish="stop", ended=ended),
                Ended(1, outcome, 900.0, 100.0, 5.0, len(data), 10),
            )
        )


def chat(*texts: str, system: str = FILLER, **more: Any) -> dict[str, Any]:
    """Turns of a user and an assistant."""
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"model": "gpt-5.1", "messages": [{"role": "system", "content": system}, *said], **more}


def counted(prompt: int, cached: int = 0) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": cached}}
