"""Errors in Google's shape."""

from __future__ import annotations

from typing import Any

from longturn.errors import LongturnError, RequestError

STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status -> `error.status`; others below 500 are invalid arguments."""


def error_status(error: Exception) -> int:
    """The HTTP status that goes with `error_body`."""
    return error.status if isinstance(error, RequestError) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """Google's error object. What is no error of ours is not shown: its message could hold content or paths."""
    code = error_status(error)
    shown = isinstance(error, LongturnError)
    message = str(error) if shown else f"Internal error ({type(error).__name__}): see the server's log."
    status = STATUSES.get(code, "INVALID_ARGUMENT" if code < 500 else "INTERNAL")
    return {"error": {"code": code, "message": message, "status": status}}
