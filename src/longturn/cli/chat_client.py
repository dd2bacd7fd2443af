"""A client of any server that speaks OpenAI's chat completions: streamed answers, and the ledger's line of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from longturn.dialects import sessions
from longturn.dialects.openai_usage import use
from longturn.errors import LedgerError, LongturnError
from longturn.ledger import RequestLine

# A long prompt may be computed for minutes before the first token.
TIMEOUT = httpx.Timeout(10, read=600)


class Answer:
    """One streamed answer. Iterate over its text, once; `line` is known afterwards, if the server reported usage."""

    def __init__(self, response: httpx.Response, session: str, began: float) -> None:
        self._response = response
        self._session = session
        self._began = began
        self._started_at = time.time()
        self.line: RequestLine | None = None

    def __iter__(self) -> Iterator[str]:
        ttft_ms: float | None = None
        reason: str | None = None
        for event in self._events():
            if "error" in event:
                raise LongturnError(_message(event))
            for choice in event.get("choices", ()):
                if ttft_ms is None:
                    ttft_ms = (time.monotonic() - self._began) * 1000
                reason = choice.get("finish_reason") or reason
                if text := choice["delta"].get("content"):
                    yield text
            if event.get("usage"):
                self.line = self._to_line(event, ttft_ms, reason)

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._response.iter_lines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                return
            if data:
                yield json.loads(data)

    def _to_line(self, event: Mapping[str, Any], ttft_ms: float | None, reason: str | None) -> RequestLine | None:
        """The line that our own server sends, or what can be said about an answer of any other."""
        usage = event["usage"]
        try:
            if "longturn" in usage:
                return RequestLine.from_dict(usage["longturn"])
            return RequestLine(
                request_id=event["id"],
                session=self._session,
                model=event["model"],
                started_at=self._started_at,
                use=use(usage),
                ttft_ms=ttft_ms,
                total_ms=(time.monotonic() - self._began) * 1000,
                finish_reason=reason,
            )
        except LedgerError:
            # Counts that do not add up are no reason to lose the answer; the meters then stay where they are.
            return None


class ChatClient:
    """Talks to the server at `url`, where a final /v1 may be left out. Close it after use.

    All methods raise LongturnError when the server cannot be reached or refuses.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        base = httpx.URL(url)
        if base.path in ("", "/"):
            base = base.copy_with(path="/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy from the environment cannot reach this machine's own addresses.
        remote = base.host not in ("127.0.0.1", "::1", "localhost")
        self._http = httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT, trust_env=remote)

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def served(self, name: str) -> tuple[str, int | None]:
        """The model called `name`, or the only one there is; with its context in tokens, where the server tells."""
        with self._reaching():
            response = self._http.get("models")
        _check(response)
        models = response.json()["data"]
        found = [model for model in models if model["id"] == name] or models
        if len(found) != 1:
            names = ", ".join(model["id"] for model in models) or "no model at all"
            raise LongturnError(f"{self._http.base_url} does not serve {name!r} but {names}: choose one with --model")
        return found[0]["id"], found[0].get("max_model_len")

    @contextmanager
    def ask(
        self, model: str, messages: Sequence[Mapping[str, str]], session: str, settings: Mapping[str, Any]
    ) -> Iterator[Answer]:
        """Have `messages` answered. Leaving the context early stops the answer."""
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **settings,
        }
        headers = {sessions.OURS: session}
        began = time.monotonic()
        with (
            self._reaching(),
            self._http.stream("POST", "chat/completions", json=body, headers=headers) as response,
        ):
            _check(response)
            yield Answer(response, session, began)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise LongturnError(
                f"{self._http.base_url} cannot be reached ({error}): check --url and that the server is running"
            ) from error


def _check(response: httpx.Response) -> None:
    if response.is_error:
        response.read()
        try:
            message = _message(response.json())
        except (ValueError, TypeError, KeyError):
            message = f"{response.url} answers {response.status_code} {response.reason_phrase}: check --url"
        raise LongturnError(message)


def _message(body: Mapping[str, Any]) -> str:
    """OpenAI's error object, or the plain string that some servers send in its place."""
    error = body["error"]
    return str(error["message"] if isinstance(error, dict) else error)
