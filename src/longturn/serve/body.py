"""Reading what a client sent, without letting one client hold up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fastapi import Request

from longturn.errors import Refusal

P = ParamSpec("P")
T = TypeVar("T")

LONG = 20_000
"""Bytes of a body from which on parsing and tokenising it would be felt by the other clients."""


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises Refusal when it is compressed or has more than `limit` bytes, as early as possible."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal(415, f"Bodies compressed with {encoding!r} are not read: send it as it is.", "compressed_body")
    if int(request.headers.get("content-length", 0)) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


async def off_the_loop(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` here if `size` bytes are quickly worked through, else in a thread."""
    if size > LONG:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"The body is larger than {limit} bytes: send less in one request.", "body_too_large")
