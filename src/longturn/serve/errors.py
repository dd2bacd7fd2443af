"""Errors on the way out: everything that goes wrong reaches the client in its own provider's shape."""

from __future__ import annotations

import asyncio
import logging
import traceback
import uuid

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longturn.errors import LongturnError, QueueFull, Refusal, RequestError
from longturn.serve.json_response import JsonResponse
from longturn.serve.wires import wire_of

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""nginx's status for a client that left; nobody receives it, but it is what the log should say."""
VERSIONS = ("v1", "v1beta")
"""How addresses begin; some SDKs want it in their base URL, others add it themselves."""


def shutting_down() -> Refusal:
    """What an answer ends with when the server stops before it is complete."""
    message = "The server is shutting down: send the request again when it is back."
    return Refusal(503, message, "shutting_down", kind="server_error")


def error_response(error: Exception, scope: Scope) -> Response:
    """The response that tells the client of a request of `error`."""
    headers, wire = {}, wire_of(scope)
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.retry_after)
    status = wire.error_status(error)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = wire.error_body(error)
    if "request_id" in body:
        body["request_id"] = scope.get("longturn.request_id")
    return JsonResponse(body, status, headers)


def report(error: Exception) -> None:
    """Log what is not the client's fault. The message of a foreign error may hold content: it is for debugging only."""
    if isinstance(error, RequestError):
        return
    place = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    what = f"{type(error).__name__}: {error}" if isinstance(error, LongturnError) else type(error).__name__
    log.error("a request failed with %s\n%s", what, place)
    log.debug("the whole error", exc_info=error)


def install(app: FastAPI) -> None:
    """Make `app` answer with errors of the client's kind, whatever happens."""
    app.add_exception_handler(LongturnError, _ours)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(RequestValidationError, _query)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_middleware(_Guard)


async def _ours(request: Request, error: Exception) -> Response:
    report(error)
    return error_response(error, request.scope)


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _query(request: Request, error: Exception) -> Response:
    """A parameter of the address; bodies are read by their dialects."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()[0]
    name = str(found["loc"][-1])
    message = f"{name} in the address: {found['msg'].removeprefix('Input ')}."
    return error_response(RequestError(message, param=name), request.scope)


async def _routing(request: Request, error: Exception) -> Response:
    """An address or method that is not served."""
    assert isinstance(error, HTTPException)
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers = error.headers or {}
    what = f"{request.method} {request.url.path} is not served here"
    message = f"{what}: {_instead(request.url.path, headers.get('Allow'))}."
    response = error_response(Refusal(error.status_code, message, code), request.scope)
    response.headers.update(headers)
    return response


def _instead(path: str, methods: str | None) -> str:
    """What to do about an address that is not served. methods: those by which it is."""
    if methods:
        return f"use {methods}"
    first, _, rest = path.removeprefix("/").partition("/")
    if first in VERSIONS and rest.partition("/")[0] in VERSIONS:
        return f"the client adds /{rest.partition('/')[0]} itself, leave /{first} out of its base URL"
    return "the API begins at /v1, see /v1/models"


class _Guard:
    """Names every response, and catches what nobody expected.

    Starlette's own last resort would hand it on to uvicorn, which logs the message.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        scope["longturn.request_id"] = request_id = f"req_{uuid.uuid4().hex}"

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(wire_of(scope).request_id, request_id)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            # Only the end of the server cancels whole requests: those whose client neither reads nor writes on.
            log.warning("dropped a connection that would have kept the server from stopping")
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            report(error)
            await error_response(error, scope)(scope, receive, send)
