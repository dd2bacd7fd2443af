"""How each provider's API looks on the wire, whatever is asked: errors, events of a stream, keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from longturn.dialects import anthropic_errors, gemini_errors, openai

Json = dict[str, Any]


def _plain(event: Json) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _named(event: Json) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\n" + _plain(event)


@dataclass(frozen=True)
class Wire:
    """One provider's conventions.

    error_status, error_body: what a client is told of an exception; frame: one event of a stream as bytes;
    keep_alive: what a silent stream sends, nothing where the provider's own clients would break on it; last: what ends
    a stream; media_type: a stream's; request_id: the header that names each response.
    """

    error_status: Callable[[Exception], int]
    error_body: Callable[[Exception], Json]
    frame: Callable[[Json], bytes]
    keep_alive: bytes = b": waiting\n\n"
    last: bytes = b""
    media_type: str = "text/event-stream"
    request_id: str = "x-request-id"


OPENAI = Wire(openai.error_status, openai.error_body, _plain, last=b"data: [DONE]\n\n")
RESPONSES = Wire(openai.error_status, openai.error_body, _named)
ANTHROPIC = Wire(
    anthropic_errors.error_status,
    anthropic_errors.error_body,
    _named,
    keep_alive=b'event: ping\ndata: {"type":"ping"}\n\n',
    request_id="request-id",
)
# Google's client takes any line that is not `data: ` for an error.
GEMINI = Wire(gemini_errors.error_status, gemini_errors.error_body, _plain, keep_alive=b"")


def gemini_array() -> Wire:
    """Google's other stream, for one answer: a JSON array that is sent element by element."""
    lead = b"["

    def frame(event: Json) -> bytes:
        nonlocal lead
        # An error is the last element; what ends a stream is not sent after it.
        framed = lead + msgspec.json.encode(event) + (b"]" if "error" in event else b"")
        lead = b",\r\n"
        return framed

    return replace(GEMINI, frame=frame, last=b"]", media_type="application/json")


def wire_of(scope: Scope) -> Wire:
    """The conventions that the client of a request expects: by path, and where three APIs share one, by header."""
    path, headers = str(scope.get("path", "")), Headers(scope=scope)
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    if path.startswith(("/v1beta", "/v1/cachedContents", "/v1/projects/")) or (
        path.startswith("/v1/models/") and ":" in path
    ):
        return GEMINI
    if path.startswith("/v1/models"):
        if "anthropic-version" in headers:
            return ANTHROPIC
        if "x-goog-api-key" in headers or "x-goog-api-client" in headers:
            return GEMINI
    return RESPONSES if path.startswith("/v1/responses") else OPENAI


def key_of(scope: Scope) -> str | None:
    """The key that a client sent, in whichever way its provider's SDK does."""
    headers = Headers(scope=scope)
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    query = QueryParams(scope.get("query_string", b""))
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or query.get("key")
