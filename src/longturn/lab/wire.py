"""One streamed request to any server that speaks OpenAI's wire format, timed from outside."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import msgspec


@dataclass
class Reply:
    """What one request brought. `arrivals_s` holds the times of the chunks that carry text, from the start of the run.

    `cached_tokens`, `output_tokens`, `prompt_tokens` and `longturn` are the server's own report (None: not reported).
    outcome: `ok`, or what went wrong in a word: `refused` (no connection), `http NNN`, `timeout`, `cut` (the run was
    over), `disconnected`, `garbage`, `server error` (told in the stream), `interrupted`; error: the same for people.
    """

    labels: dict[str, Any]
    sent_tokens: int
    started_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    longturn: Any = None
    outcome: str = "interrupted"  # until it is answered
    error: str | None = "interrupted"
    ended_s: float | None = None

    @property
    def ttft_s(self) -> float:
        """To the first text. Raises IndexError if none came."""
        return self.arrivals_s[0] - self.started_s

    @property
    def gaps_s(self) -> list[float]:
        """Between chunks of text."""
        return [later - earlier for earlier, later in pairwise(self.arrivals_s)]

    def fail(self, outcome: str, error: str) -> None:
        """Take down what went wrong."""
        self.outcome, self.error = outcome, error


@dataclass
class Answer:
    """What was generated: its text, and its token ids where the server tells them."""

    text: str = ""
    ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Limit:
    """How long a request may take, in seconds, and how the limit is called. cut: it is the end of the whole run."""

    seconds: float
    name: str
    cut: bool = False


# What is read of an event. Fields that a server adds are none of our business; what is of another type is garbage.
class _Logprob(msgspec.Struct):
    id: int | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    longturn: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)


def client(base_url: str, *, api_key: str | None = None) -> httpx.AsyncClient:
    """A client for the server at `base_url`, where a final /v1 may be left out. Close it.

    It has no timeouts of its own, since `send` keeps them, and heeds no proxy, since that would be measured too. Every
    request has a connection of its own: some servers close one just when the next request is on its way in it.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    root = base_url.rstrip("/").removesuffix("/v1")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=root, headers=headers, timeout=None, limits=limits, trust_env=False)


async def send(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], reply: Reply, now: Callable[[], float], limit: Limit
) -> Answer:
    """POST `body`, which asks for a stream with usage, and fill `reply` as it is answered; `now` in seconds.

    Whatever a server does is taken down in `reply`. Only being cancelled is raised, and leaves it `interrupted`.
    """
    answer, content = Answer(), msgspec.json.encode(body)
    headers = {"Content-Type": "application/json"}
    reply.started_s = now()
    try:
        async with (
            asyncio.timeout(limit.seconds),
            client.stream("POST", path, content=content, headers=headers) as response,
        ):
            await _read(response, reply, answer, now)
    except TimeoutError:
        name = f"timed out ({limit.name}) after {len(reply.arrivals_s)} chunks"
        reply.fail("cut" if limit.cut else "timeout", name)
    except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        reply.fail("refused", f"{type(error).__name__}: {error}")
    except httpx.HTTPError as error:
        reply.fail("disconnected", f"{type(error).__name__}: {error}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reply.fail("garbage", f"an event of the stream cannot be read: {error}")
    reply.ended_s = now()
    return answer


async def _read(response: httpx.Response, reply: Reply, answer: Answer, now: Callable[[], float]) -> None:
    if not response.is_success:
        text = (await response.aread()).decode(errors="replace")[:300]
        reply.fail(f"http {response.status_code}", f"HTTP {response.status_code}: {text}")
        return
    done = finished = False
    async for line in _lines(response):
        arrived = now()
        data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if not data:
            continue
        if done := data == b"[DONE]":
            break
        event = _EVENT.decode(data)
        if event.error is not None:
            reply.fail("server error", f"error in the stream: {event.error}")
            return
        finished |= _take(event, arrived, reply, answer)
    if not (reply.arrivals_s and (done or finished)):
        reply.fail("disconnected", f"the stream ended early, after {len(reply.arrivals_s)} chunks")
        return
    reply.outcome, reply.error = "ok", None


def _take(event: _Event, now: float, reply: Reply, answer: Answer) -> bool:
    """Note the chunk; whether it says that the answer is complete."""
    finished = False
    for choice in event.choices or ():
        delta = choice.delta or _Delta()
        text = choice.text or delta.content or ""
        finished |= choice.finish_reason is not None
        # Some servers end with a chunk that holds no text: it is a token only if none came before.
        if text or delta.reasoning_content or (finished and not reply.arrivals_s):
            reply.arrivals_s.append(now)
        answer.text += text
        answer.ids += choice.token_ids or ()
        if choice.logprobs is not None:
            answer.ids += [entry.id for entry in choice.logprobs.content or () if entry.id is not None]
    if event.usage is not None:
        usage = event.usage
        reply.prompt_tokens, reply.output_tokens = usage.prompt_tokens, usage.completion_tokens
        details = usage.prompt_tokens_details
        reply.cached_tokens = None if details is None else details.cached_tokens
        reply.longturn = usage.longturn
    return finished


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of an event stream, which end in CR, LF or both and nowhere else: httpx splits text at U+2028 too."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = re.split(rb"\r\n|\r|\n", rest + chunk)
        for line in lines:
            yield line
    yield rest
