"""Before a server of our own, the gateway's ledger says of each miss what the engine's does, over every wire."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from longturn.engine import EngineService
from longturn.ledger import RequestLine
from longturn.serve import create_app, in_background
from tests.gateway.rig import gateway
from tests.serve.conftest import tiny_options
from tests.tiny_model import build_tiny_model

Request = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineService]:
    """One with a small device, and nothing below it."""
    folder = build_tiny_model(tmp_path_factory.mktemp("tiny"))
    service = EngineService.start(tiny_options(folder, device_tokens=2048, host_bytes=0))
    yield service
    service.close()


def chat(turns: list[dict[str, str]]) -> Request:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    return "/v1/chat/completions", {"model": "tiny", "messages": turns, "max_tokens": 2, **more}


def responses(turns: list[dict[str, str]]) -> Request:
    return "/v1/responses", {"model": "tiny", "input": turns, "max_output_tokens": 2, "stream": True}


def messages(turns: list[dict[str, str]]) -> Request:
    return "/v1/messages", {"model": "tiny", "messages": turns, "max_tokens": 2, "stream": True}


def gemini(turns: list[dict[str, str]]) -> Request:
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[turn["role"]], "parts": [{"text": turn["content"]}]} for turn in turns]
    body = {"contents": contents, "generationConfig": {"maxOutputTokens": 2}}
    return "/v1beta/models/tiny:streamGenerateContent?alt=sse", body


@pytest.mark.parametrize("wire", [chat, responses, messages, gemini])
async def test_an_evicted_prefix(tmp_path: Path, engine: EngineService, wire: Callable[..., Request]) -> None:
    texts = random.Random(wire.__name__)
    first, second = ("".join(texts.choices("abcdefgh ", k=1500)) for _ in range(2))
    talk = [{"role": "user", "content": first}]
    grown = [*talk, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    own: list[RequestLine] = []
    engine.on_line(own.append)
    with in_background(create_app(engine), engine) as url:
        async with gateway(tmp_path, url) as proxy, httpx.AsyncClient(base_url=proxy.url, timeout=60) as client:
            for turns in (talk, [{"role": "user", "content": second}], grown):
                path, body = wire(turns)
                (await client.post(path, json=body)).raise_for_status()
            *_, entry = await proxy.settled(3)
            lines = await proxy.settled_lines(3)
    assert [line.miss for line in lines] == [line.miss for line in own]
    assert [line.use.cached for line in lines] == [line.use.cached for line in own]
    assert lines[2].miss is not None
    assert lines[2].miss.startswith("evicted: ")
    assert (entry.mechanism, entry.drift) == ("evicted", None)
    assert entry.lost_tokens > 0.5 * lines[0].use.logical
