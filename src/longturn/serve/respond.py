"""From the outputs of the engine to the response of a call, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from longturn.cache import Tokens
from longturn.dialects import openai
from longturn.dialects.openai import ChatRequest, CompletionRequest
from longturn.engine import Output, SamplingParams
from longturn.errors import RequestError
from longturn.serve.bridge import Answers
from longturn.serve.errors import report
from longturn.serve.front import Front
from longturn.serve.json_response import JsonResponse
from longturn.serve.usage import usage_of

T = TypeVar("T")
Json = dict[str, Any]

KEEP_ALIVE = 15.0
"""Seconds of silence after which a stream sends a comment, so that no proxy takes it for dead."""
SESSION_HEADER = "x-longturn-session"
SESSION_LENGTH = 256


class Rendering(Protocol):
    """Makes one endpoint's JSON of outputs; mutated by every `push`."""

    id: str

    def push(self, index: int, output: Output) -> list[Json]:
        """Take the next output of choice `index`; return the chunks of a stream that say what is new."""

    def whole(self, usage: Json) -> Json:
        """The answer of a call that is not streamed."""

    def last(self, usage: Json) -> Json:
        """The chunk that ends a stream with its usage."""


@dataclass(frozen=True)
class Call:
    """What a client's call takes: one prompt and its settings for each choice, and how to render the answers."""

    request: ChatRequest | CompletionRequest
    choices: Sequence[tuple[Tokens, SamplingParams]]
    rendering: Rendering


async def respond(http: Request, front: Front, call: Call, salt: str) -> Response:
    """Submit all of `call` and answer it. Raises what `submit` raises, and then nothing of it is left behind."""
    request, rendering = call.request, call.rendering
    session = request.session or _session(http)
    if request.cache_salt is not None:
        # A client's own salt divides its part of the cache further; it cannot name another client's.
        salt = f"{salt}/{request.cache_salt}"
    answers = Answers(front.service, front.metrics.inter_token.observe)
    try:
        for number, (tokens, params) in enumerate(call.choices):
            id = rendering.id if len(call.choices) == 1 else f"{rendering.id}-{number}"
            answers.ask(id, tokens, params, salt=salt, session=session, priority=request.priority or 0)
        if not request.stream:
            return await _unless_gone(http, _whole(answers, rendering))
    except BaseException:
        answers.close()
        raise
    return _Stream(answers, rendering, include_usage=request.include_usage)


async def _whole(answers: Answers, rendering: Rendering) -> Response:
    async for index, output in answers:
        rendering.push(index, output)
    return JsonResponse(rendering.whole(usage_of(answers.lines, rendering.id)))


class _Stream(StreamingResponse):
    """Server-sent events. Starlette cancels them when the client leaves, and then the requests are cancelled too."""

    def __init__(self, answers: Answers, rendering: Rendering, *, include_usage: bool) -> None:
        self._answers = answers
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        events = _events(answers, rendering, include_usage=include_usage)
        super().__init__(events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def _events(answers: Answers, rendering: Rendering, *, include_usage: bool) -> AsyncIterator[bytes]:
    try:
        while not answers.finished:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    index, output = await answers.next()
            except TimeoutError:
                yield b": waiting\n\n"
                continue
            for chunk in rendering.push(index, output):
                yield _event(chunk)
        if include_usage:
            yield _event(rendering.last(usage_of(answers.lines, rendering.id)))
        yield b"data: [DONE]\n\n"
    except Exception as error:
        # The status is long sent: the error is the stream's last event, and no [DONE] follows.
        report(error)
        yield _event(openai.error_body(error))


def _event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def _unless_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, but stop when the client leaves: raises ClientDisconnect then."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _session(http: Request) -> str | None:
    session = http.headers.get(SESSION_HEADER)
    if session and len(session) > SESSION_LENGTH:
        raise RequestError(f"{SESSION_HEADER} has more than {SESSION_LENGTH} characters: use a shorter name.")
    return session or None
