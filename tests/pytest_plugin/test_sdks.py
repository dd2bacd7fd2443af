"""The official SDKs, newest generation, against a server on this machine: each request is recorded and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest

from longturn.pytest_plugin.cached_prefix import CachedPrefix
from longturn.pytest_plugin.taps import tapped
from tests.conversation.models.replies import Provider, Reply, provider
from tests.pytest_plugin.sdks import CALLS, STREAM, WHOLE, ask, gemini

SYSTEM = "You are a careful agent that works in a repository. " * 20
TURNS = ["Which file drops the last line?", "The parser does.", "Then mend it."]
every_sdk = pytest.mark.parametrize("name", CALLS)
every_way = pytest.mark.parametrize(("in_loop", "stream"), [(False, False), (True, False), (False, True), (True, True)])


@pytest.fixture
def api() -> Iterator[Provider]:
    with provider() as server:
        yield server


@pytest.fixture
def prefix() -> Iterator[CachedPrefix]:
    found = CachedPrefix()
    with tapped(found.record):
        yield found


@every_sdk
@every_way
def test_each_request_is_recorded_once(
    api: Provider, prefix: CachedPrefix, name: str, in_loop: bool, stream: bool
) -> None:
    api.will(STREAM if stream else WHOLE)
    for turns in (TURNS[:1], TURNS):
        ask(name, api.url, SYSTEM, turns, in_loop=in_loop, stream=stream)
    assert [one.provider for one in prefix.requests] == [name, name]
    assert all(one.exchange.prompt.model for one in prefix.requests)
    assert prefix.breaks == []
    ask(name, api.url, f"{SYSTEM} It is 12:00:01.", TURNS, in_loop=in_loop, stream=stream)
    ask(name, api.url, f"{SYSTEM} It is 12:00:02.", TURNS, in_loop=in_loop, stream=stream)
    assert len(prefix.requests) == len(api.asked) == 4
    assert [one.verdict.mechanism for one in prefix.breaks][-1] == "volatile_text"
    assert (prefix.breaks[-1].earlier.number, prefix.breaks[-1].later.number) == (3, 4)


def test_gemini_in_a_loop_over_httpx2(api: Provider, prefix: CachedPrefix) -> None:
    from google import genai

    async def ask_twice() -> None:
        async with httpx2.AsyncClient() as http:
            options = genai.types.HttpOptions(base_url=api.url, httpx_async_client=http)
            client = genai.Client(api_key="x", http_options=options)
            for turns in (TURNS[:1], TURNS):
                await gemini(client.aio, SYSTEM, turns, ["read"], False)

    api.will(WHOLE)
    asyncio.run(ask_twice())
    assert [one.provider for one in prefix.requests] == ["gemini", "gemini"]
    assert prefix.breaks == []


@every_sdk
def test_tools_in_another_order(api: Provider, prefix: CachedPrefix, name: str) -> None:
    api.will(WHOLE)
    ask(name, api.url, SYSTEM, TURNS[:1], ("read", "write", "search"))
    ask(name, api.url, SYSTEM, TURNS, ("write", "search", "read"))
    with pytest.raises(pytest.fail.Exception, match="tools_reordered") as failed:
        prefix.check()
    assert "Sort the tools by name" in str(failed.value)


def test_an_attempt_that_was_refused_does_not_count(api: Provider, prefix: CachedPrefix) -> None:
    busy = Reply("{}", status=503, headers={"retry-after-ms": "1"})
    api.will(busy, WHOLE)
    ask("openai-chat", api.url, SYSTEM, TURNS)
    assert len(api.asked) == 2
    assert len(prefix.requests) == 1


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_mocked_transports(prefix: CachedPrefix, library: Any) -> None:
    transport = library.MockTransport(lambda request: library.Response(200, json={}))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello, who are you?"}]}
    with library.Client(transport=transport) as client:
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/messages/count_tokens"):
            client.post(f"http://model.test{path}", json=body)
        # Neither a body that is no JSON, nor one in pieces, nor a question that brings only what is new.
        client.post("http://model.test/v1/chat/completions", content=b"\xff")
        client.post("http://model.test/v1/messages", content=iter([b"{}"]))
        client.post("http://model.test/v1/responses", json={"input": "x", "previous_response_id": "resp_1"})
        client.get("http://model.test/v1/responses")
    assert [str(one) for one in prefix.requests] == ["request 1 (openai-chat, m)"]


def test_nothing_is_heard_afterwards() -> None:
    before = httpx.Client.send, httpx.AsyncClient.send, httpx2.Client.send, httpx2.AsyncClient.send
    with tapped(CachedPrefix().record):
        assert httpx.Client.send is not before[0]
    assert (httpx.Client.send, httpx.AsyncClient.send, httpx2.Client.send, httpx2.AsyncClient.send) == before
