"""Listens to what HTTP clients send. Above all transports, so that it hears mocked, replayed and real servers alike."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

HTTPX = ("httpx", "httpx2")
"""Libraries with the same classes: the SDKs' newest generation uses the second."""

Listener = Callable[[str, bytes], None]


@contextmanager
def tapped(listener: Listener) -> Iterator[None]:
    """While this lasts, tell `listener` the path and body of every POST that is answered without an error.

    What was refused has left nothing in a cache, and is sent again by most SDKs.
    """
    with pytest.MonkeyPatch.context() as patch:
        for library in filter(None, map(_installed, HTTPX)):
            patch.setattr(library.Client, "send", _sends(library.Client.send, listener))
            patch.setattr(library.AsyncClient, "send", _sends_later(library.AsyncClient.send, listener))
        # google-genai prefers this one for asynchronous calls wherever it is installed.
        if (aiohttp := _installed("aiohttp")) is not None:
            patch.setattr(aiohttp.ClientSession, "_request", _requests(aiohttp.ClientSession._request, listener))
        yield


def _installed(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        return None


def _sends(send: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    @wraps(send)
    def heard(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = send(self, request, *args, **kwargs)
        _tell(listener, request, response)
        return response

    return heard


def _sends_later(send: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    @wraps(send)
    async def heard(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = await send(self, request, *args, **kwargs)
        _tell(listener, request, response)
        return response

    return heard


def _tell(listener: Listener, request: Any, response: Any) -> None:
    if request.method != "POST" or response.is_error:
        return
    try:
        content = request.content
    except RuntimeError:
        # Sent in pieces and not kept: an upload, for SDKs send JSON as one piece.
        return
    listener(request.url.path, content)


def _requests(request: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    @wraps(request)
    async def heard(self: Any, method: str, url: Any, **kwargs: Any) -> Any:
        response = await request(self, method, url, **kwargs)
        body = kwargs.get("data") if kwargs.get("json") is None else json.dumps(kwargs["json"])
        if method.upper() == "POST" and response.ok and isinstance(body, str | bytes):
            listener(response.url.path, body.encode() if isinstance(body, str) else body)
        return response

    return heard
