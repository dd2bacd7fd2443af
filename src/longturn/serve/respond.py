"""From the outputs of the engine to the response of a call, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from longturn.cache import Hint, Tokens
from longturn.dialects.sessions import OURS, session_name
from longturn.engine import Output, SamplingParams
from longturn.errors import RequestError
from longturn.ledger import RequestLine
from longturn.serve.bridge import Answers
from longturn.serve.errors import report
from longturn.serve.front import Front
from longturn.serve.json_response import JsonResponse
from longturn.serve.wires import Wire

T = TypeVar("T")
Json = dict[str, Any]

KEEP_ALIVE = 15.0
"""Seconds of silence after which a stream sends a comment, so that no proxy takes it for dead."""
SESSION_LENGTH = 256


class Rendering(Protocol):
    """Makes one endpoint's JSON of outputs; mutated by every `push`."""

    id: str
    wire: Wire

    def push(self, index: int, output: Output) -> list[Json]:
        """Take the next output of choice `index`; return the events of a stream that say what is new."""

    def whole(self, lines: Sequence[RequestLine]) -> Json:
        """The answer of a call that is not streamed. lines: the ledger's, one for each choice."""

    def end(self, lines: Sequence[RequestLine]) -> list[Json]:
        """The events that end a stream, its usage among them."""

    def failed(self, error: Exception) -> list[Json]:
        """The events that end a stream which fails midway: its status is long sent."""


@dataclass(frozen=True)
class Call:
    """What a client's call takes: one prompt and its settings for each choice, and how to render the answers.

    choices: all with the same grammar, or none; session: the conversation's name in the ledger, if the body gave one;
    salt: the client's own, which divides its part of the cache further; hints: their salt is set here.
    """

    choices: Sequence[tuple[Tokens, SamplingParams]]
    rendering: Rendering
    stream: bool = False
    session: str | None = None
    salt: str | None = None
    priority: int = 0
    hints: Sequence[Hint] = ()


async def respond(http: Request, front: Front, call: Call, salt: str) -> Response:
    """Submit all of `call` and answer it. Raises what `submit` raises, and then nothing of it is left behind."""
    session = call.session or _session(http)
    if call.salt is not None:
        # It cannot name another client's.
        salt = f"{salt}/{call.salt}"
    hints = [replace(hint, salt=salt) for hint in call.hints]
    _, params = call.choices[0]
    if params.grammar is not None:
        await asyncio.to_thread(front.service.prepare, params)
    answers = Answers(front.service, front.metrics.inter_token.observe)
    try:
        for number, (tokens, params) in enumerate(call.choices):
            id = call.rendering.id if len(call.choices) == 1 else f"{call.rendering.id}-{number}"
            answers.ask(id, tokens, params, salt=salt, session=session, priority=call.priority, hints=hints)
        if not call.stream:
            return await unless_gone(http, _whole(answers, call.rendering))
    except BaseException:
        answers.close()
        raise
    return _Stream(answers, call.rendering)


async def _whole(answers: Answers, rendering: Rendering) -> Response:
    async for index, output in answers:
        rendering.push(index, output)
    return JsonResponse(rendering.whole(answers.lines))


class _Stream(StreamingResponse):
    """A streamed answer. Starlette cancels it when the client leaves, and then the requests are cancelled too."""

    def __init__(self, answers: Answers, rendering: Rendering) -> None:
        self._answers = answers
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_events(answers, rendering), headers=headers, media_type=rendering.wire.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def _events(answers: Answers, rendering: Rendering) -> AsyncIterator[bytes]:
    wire = rendering.wire
    try:
        while not answers.finished:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    index, output = await answers.next()
            except TimeoutError:
                if wire.keep_alive:
                    yield wire.keep_alive
                continue
            for event in rendering.push(index, output):
                yield wire.frame(event)
        for event in rendering.end(answers.lines):
            yield wire.frame(event)
        if wire.last:
            yield wire.last
    except Exception as error:
        # The status is long sent: the error is the stream's last event.
        report(error)
        for event in rendering.failed(error):
            yield wire.frame(event)


async def unless_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
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
    if len(http.headers.get(OURS, "")) > SESSION_LENGTH:
        raise RequestError(f"{OURS} has more than {SESSION_LENGTH} characters: use a shorter name.")
    return session_name(http.headers)
