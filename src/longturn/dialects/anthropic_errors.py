"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from longturn.errors import LongturnError, PromptTooLong, RequestError

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""HTTP status -> `error.type`; others below 500 are invalid requests, others from 500 on the API's own errors."""


def error_status(error: Exception) -> int:
    """The HTTP status that goes with `error_body`. A server that is stopping is overloaded, which clients retry."""
    status = error.status if isinstance(error, RequestError) else 500
    return 529 if status == 503 else status


def error_body(error: Exception, request_id: str | None = None) -> dict[str, Any]:
    """Anthropic's error object. What is no error of ours is not shown: its message could hold content or paths."""
    status = error_status(error)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    shown = isinstance(error, LongturnError)
    message = str(error) if shown else f"Internal error ({type(error).__name__}): see the server's log."
    if isinstance(error, PromptTooLong):
        # Clients know by these words that they must compact.
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
