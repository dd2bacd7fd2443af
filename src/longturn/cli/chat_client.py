"""A client of any server that speaks OpenAI's chat completions: one streamed answer, and the ledger's line for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import httpx

from longturn.dialects.openai_usage import use
from longturn.errors import LedgerError, LongturnError
from longturn.ledger import RequestLine

Json = dict[str, Any]
TIMEOUT = httpx.Timeout(10, read=600)


class ChatClient:
    """Talks to the server at `url`, which may leave out the final /v1. Use as a context manager's inner part or close.

    Every method raises LongturnError when the server cannot be reached or refuses.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        base = httpx.URL(url)
        if base.path in ("", "/"):
            base = base.copy_with(path="/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT)

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def served(self, name: str | None = None) -> tuple[str, int | None]:
        """The model called `name`, or the first one, and its context in tokens where the server tells."""
        with self._reaching():
            response = self._http.get("models")
        _check(response)
        models = response.json()["data"]
        model = next((model for model in models if name in (None, model["id"])), None)
        if model is None:
            listed = ", ".join(model["id"] for model in models) or "none"
            raise LongturnError(f"no model {name!r} is served there, only {listed}: give one as --model")
        return model["id"], model.get("max_model_len")
