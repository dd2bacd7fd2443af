"""`Proxy`: every request goes to its upstream and every answer back, byte for byte, as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from longturn.dialects.sessions import session_name
from longturn.gateway.budgets import Budgets
from longturn.gateway.headers import BETAS, key_hash, passed
from longturn.gateway.refusals import over_budget, unreachable
from longturn.gateway.routes import Route, Upstreams
from longturn.gateway.tap import Exchange, Tap

log = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
LONGEST_HEADER = 64 << 10
SMALL = 256 << 10
"""Bytes of a body that is read whole before it is sent on."""
ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What the HTTP client would add to a request that has none of its own."""
OWN_ANSWER = ("Content-Type", "Date", "Server")
"""What the HTTP server would add to an answer that has none of its own."""


class Proxy:
    """Forwards. Use as a context manager inside a running loop.

    Outcomes, as they are told to the tap: `complete`; `client_left`; `broken`, where the upstream ended in the middle
    of its answer, and the client's connection is ended there too; `unreachable`, where it gave none; `stopped`, where
    the gateway itself was. Where it was killed and could tell nothing any more, the accountant writes `abandoned`.
    """

    def __init__(self, upstreams: Upstreams, tap: Tap, budgets: Budgets) -> None:
        self._upstreams = upstreams
        self._tap = tap
        self._budgets = budgets
        self._client: aiohttp.ClientSession | None = None
        self.stopping = False
        """Set it before the requests that are left are cancelled."""

    async def __aenter__(self) -> Proxy:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=ADDED,
            auto_decompress=False,
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()

    def app(self) -> web.Application:
        """The proxy as an application of aiohttp's server."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.on_response_prepare.append(_without_additions)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        target = request.raw_path
        if not target.startswith("/"):
            raise web.HTTPBadRequest(text="the gateway takes requests for a path: give its address as the base URL")
        route = self._upstreams.route(request.method, target, request.headers)
        if route.dialect is None:
            return await self._forward(request, route, None)
        key = key_hash(request.headers, request.query_string)
        if message := self._budgets.exceeded(key):
            return over_budget(route.family, message)
        exchange = self._tap.exchange(
            dialect=route.dialect,
            upstream=route.upstream,
            path=request.rel_url.raw_path,
            key=key,
            session=session_name(request.headers),
            encoding=request.headers.get("Content-Encoding", ""),
            betas=",".join(request.headers.getall(BETAS, ())),
        )
        outcome = "client_left"
        try:
            answer = await self._forward(request, route, exchange)
            outcome = str(answer.get(OUTCOME, "complete"))
            return answer
        except asyncio.CancelledError:
            outcome = "stopped" if self.stopping else "client_left"
            raise
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"the body is not as its headers say: {error}") from error
        except Exception as error:
            log.error("a request was not passed on (%s): please report it", type(error).__name__)
            raise
        finally:
            exchange.ended(outcome)

    async def _forward(self, request: web.Request, route: Route, exchange: Exchange | None) -> web.StreamResponse:
        assert self._client is not None
        headers = passed(request.raw_headers, drop=("host", "expect"))
        body = await _body(request, exchange)
        try:
            answer = await self._client.request(
                request.method,
                URL(route.url, encoded=True),
                headers=CIMultiDict(headers),
                data=body,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            log.warning("%s gave no answer: %s", route.upstream, error)
            refusal = unreachable(route.family, str(error) or type(error).__name__)
            refusal[OUTCOME] = "unreachable"
            return refusal
        try:
            return await _pass_on(request, answer, exchange)
        finally:
            # Of an answer that was read to its end the connection is kept; any other is cut, which cancels upstream.
            answer.close()


OUTCOME = web.ResponseKey("outcome", str)
GIVEN = web.ResponseKey("given", frozenset)
"""Names of the headers that an upstream has sent."""


async def _body(request: web.Request, exchange: Exchange | None) -> bytes | AsyncGenerator[bytes] | None:
    """The request's body: whole where it is small, so that it travels in one piece with its head; else as it comes."""
    if not request.body_exists:
        return None
    if not 0 < (request.content_length or 0) <= SMALL:
        return _pieces(request, exchange)
    body = await request.read()
    if exchange is not None:
        exchange.sent(body)
    return body


async def _pieces(request: web.Request, exchange: Exchange | None) -> AsyncGenerator[bytes]:
    async for piece in request.content.iter_any():
        if exchange is not None:
            exchange.sent(piece)
        yield piece


async def _pass_on(
    request: web.Request, answer: aiohttp.ClientResponse, exchange: Exchange | None
) -> web.StreamResponse:
    """The upstream's answer, as it comes. What ends too early there ends too early here."""
    headers = passed(answer.raw_headers)
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=CIMultiDict(headers))
    response[GIVEN] = frozenset(name.lower() for name, _ in headers)
    if exchange is not None:
        exchange.answered(
            answer.status, answer.headers.get("Content-Type", ""), answer.headers.get("Content-Encoding", "")
        )
    try:
        await response.prepare(request)
    except ConnectionError:
        response[OUTCOME] = "client_left"
        return response
    broken = False
    while not broken:
        try:
            piece = await answer.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            log.warning("%s broke off its answer: %s", answer.url.host, error)
            broken = True
            piece = _rest(answer.content)
        if not piece:
            break
        try:
            await response.write(piece)
        except ConnectionError:
            response[OUTCOME] = "client_left"
            return response
        if exchange is not None:
            exchange.got(piece)
    if broken:
        response[OUTCOME] = "broken"
        if request.transport is not None:
            # The client's connection ends as well, without the end of the answer.
            request.transport.close()
    return response


def _rest(content: aiohttp.StreamReader) -> bytes:
    """What had come before the connection broke: the reader still has it, but shows its exception first."""
    content.set_exception(None)  # type: ignore[arg-type]
    return content.read_nowait()


async def _without_additions(_: web.Request, response: web.StreamResponse) -> None:
    """Leave away what aiohttp adds to an upstream's answer that has none."""
    given = response.get(GIVEN)
    if given is not None:
        for name in OWN_ANSWER:
            if name.lower() not in given:
                response.headers.pop(name, None)
