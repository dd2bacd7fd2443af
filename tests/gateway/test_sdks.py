"""The official clients, unmodified, find the same behind the gateway as without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types

from tests.conversation.models.replies import Asked, Provider, Reply, provider
from tests.conversation.models.wires import KINDS, error, whole
from tests.gateway.rig import free_port, gateway

MESSAGES: list[Any] = [{"role": "user", "content": "Hello, été."}]


@pytest.fixture
def api() -> Iterator[Provider]:
    with provider() as server:
        yield server


def chat(url: str) -> list[str]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="KEY", max_retries=0)
    chunks = client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    return [chunk.model_dump_json() for chunk in chunks]


def responses(url: str) -> list[str]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="KEY", max_retries=0)
    return [event.model_dump_json() for event in client.responses.create(model="m", input="Hello, été.", stream=True)]


def messages(url: str) -> list[str]:
    client = anthropic.Anthropic(base_url=url, api_key="KEY", max_retries=0)
    return [
        event.model_dump_json()
        for event in client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True)
    ]


def generate(url: str) -> list[str]:
    client = genai.Client(api_key="KEY", http_options=types.HttpOptions(base_url=url))
    return [
        chunk.model_dump_json(exclude={"sdk_http_response"})
        for chunk in client.models.generate_content_stream(model="m", contents="Hello, été.")
    ]


async def chat_async(url: str) -> list[str]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="KEY", max_retries=0)
    chunks = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    return [chunk.model_dump_json() async for chunk in chunks]


async def messages_async(url: str) -> list[str]:
    client = anthropic.AsyncAnthropic(base_url=url, api_key="KEY", max_retries=0)
    stream = await client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True)
    return [event.model_dump_json() async for event in stream]


CALLS: dict[str, Callable[[str], list[str]]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": messages,
    "gemini": generate,
}
REFUSED: dict[str, tuple[type[Exception], ...]] = {
    "chat": (openai.RateLimitError,),
    "responses": (openai.RateLimitError,),
    "anthropic": (anthropic.RateLimitError,),
    "gemini": (genai_errors.ClientError,),
}


def sent(asked: Asked) -> tuple[str, Any, dict[str, str]]:
    """A request without what is about the connection, or counts its attempts."""
    own = {"host", "connection", "keep-alive"}
    return asked.path, asked.body, {name: value for name, value in asked.headers.items() if name not in own}


@pytest.mark.parametrize("kind", KINDS)
async def test_streams_are_the_same_with_and_without(kind: str, api: Provider, tmp_path: Path) -> None:
    api.will(whole(kind))
    async with gateway(tmp_path, api.url) as proxy:
        direct = await asyncio.to_thread(CALLS[kind], api.url)
        through = await asyncio.to_thread(CALLS[kind], proxy.url)
        await proxy.settled(1)
    assert through == direct
    assert len(direct) > 3
    first, second = (asked for asked in api.asked if asked.body)
    assert sent(first) == sent(second)
    (line,) = await proxy.settled_lines(1)
    assert (line.use.logical, dict(line.use.cached), line.use.output) == (100, {"provider": 64}, 9)
    assert line.model == "m"
    assert line.finish_reason is not None
    (entry,) = proxy.entries()
    assert (entry.outcome, entry.ended, entry.garbled, entry.trouble) == ("complete", True, 0, None)


@pytest.mark.parametrize(("kind", "call"), [("chat", chat_async), ("anthropic", messages_async)])
async def test_asynchronous_clients(kind: str, call: Any, api: Provider, tmp_path: Path) -> None:
    api.will(whole(kind))
    async with gateway(tmp_path, api.url) as proxy:
        assert await call(proxy.url) == await call(api.url)
        (entry,) = await proxy.settled(1)
    assert entry.ended


async def test_answers_without_a_stream(api: Provider, tmp_path: Path) -> None:
    usage = {"input_tokens": 6, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 64, "output_tokens": 9}
    answer = {
        "id": "r1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hi."}], "usage": usage,
    }  # fmt: skip
    api.will(Reply(json.dumps(answer)))
    async with gateway(tmp_path, api.url) as proxy:
        client = anthropic.Anthropic(base_url=proxy.url, api_key="KEY")
        found = await asyncio.to_thread(client.messages.create, model="m", max_tokens=9, messages=MESSAGES)
        await proxy.settled(1)
    assert found.usage.cache_read_input_tokens == 64
    (line,) = await proxy.settled_lines(1)
    assert (line.model, line.use.written, line.finish_reason) == ("claude-x", 30, "end_turn")


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_keep_their_class(kind: str, api: Provider, tmp_path: Path) -> None:
    code = {"gemini": "RESOURCE_EXHAUSTED", "anthropic": "rate_limit_error"}.get(kind, "rate_limit_exceeded")
    api.will(error(kind, 429, code, "Slow down.", **{"retry-after": "7"}))
    async with gateway(tmp_path, api.url) as proxy:
        with pytest.raises(REFUSED[kind], match="Slow down"):
            await asyncio.to_thread(CALLS[kind], proxy.url)
        (entry,) = await proxy.settled(1)
    assert entry.status == 429
    assert entry.error


@pytest.mark.parametrize("kind", KINDS)
async def test_over_budget_is_an_error_of_the_client_library(kind: str, api: Provider, tmp_path: Path) -> None:
    api.will(whole(kind))
    async with gateway(tmp_path, api.url, budget="0") as proxy:
        with pytest.raises(REFUSED[kind], match="budget"):
            await asyncio.to_thread(CALLS[kind], proxy.url)
    assert not any(asked.body for asked in api.asked)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("chat", openai.InternalServerError),
        ("anthropic", anthropic.InternalServerError),
        ("gemini", genai_errors.ServerError),
    ],
)
async def test_no_upstream_is_an_error_of_the_client_library(
    kind: str, wanted: type[Exception], tmp_path: Path
) -> None:
    async with gateway(tmp_path, f"http://127.0.0.1:{free_port()}") as proxy:
        with pytest.raises(wanted, match="no answer from its upstream"):
            await asyncio.to_thread(CALLS[kind], proxy.url)


async def test_a_stream_that_breaks_off_is_an_error(api: Provider, tmp_path: Path) -> None:
    api.will(Reply(whole("chat").body[:300], kind="text/event-stream", cut=True))
    async with gateway(tmp_path, api.url) as proxy:
        for url in (api.url, proxy.url):
            with pytest.raises(openai.APIConnectionError):
                await asyncio.to_thread(chat, url)
        (entry,) = await proxy.settled(1)
    assert entry.outcome == "broken"


async def test_models_of_three_providers_are_one_path(tmp_path: Path) -> None:
    from longturn.gateway import Upstreams

    upstreams = Upstreams(openai="http://o", anthropic="http://a/", gemini="http://g")
    routes = [
        upstreams.route("GET", "/v1/models", headers).url
        for headers in ({"authorization": "Bearer k"}, {"anthropic-version": "1"}, {"x-goog-api-key": "k"})
    ]
    assert routes == ["http://o/v1/models", "http://a/v1/models", "http://g/v1/models"]


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages?beta=true", "anthropic"),
        ("/anthropic/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", None),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict", "anthropic"),
        ("/v1/threads/t/messages", None),
        ("/v1/responses", "openai"),
        ("/v1/responses/r/cancel", None),
        ("/openai/deployments/d/chat/completions?api-version=1", "openai-chat"),
        ("/v1/completions", "openai-chat"),
        ("/v1/embeddings", None),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "gemini"),
        ("/v1beta/models/m:countTokens", None),
    ],
)
def test_what_a_model_answers_is_told_by_its_path(path: str, dialect: str | None) -> None:
    from longturn.gateway import Upstreams

    assert Upstreams("http://x").route("POST", path, {}).dialect == dialect
    assert Upstreams("http://x").route("GET", path, {}).dialect is None


def test_a_version_in_both_is_written_once() -> None:
    from longturn.gateway import Upstreams

    upstreams = Upstreams("https://x.example/api/v1")
    assert upstreams.route("POST", "/v1/messages", {}).url == "https://x.example/api/v1/messages"
    assert upstreams.route("POST", "/chat/completions", {}).url == "https://x.example/api/v1/chat/completions"
