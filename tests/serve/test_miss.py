"""Every answer says why its prompt was computed, whatever wire it came through."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from longturn.engine import EngineService
from longturn.serve import create_app, in_background
from longturn.serve.keys import Keys
from tests.serve.conftest import tiny_options

SEEDS = itertools.count()


@pytest.fixture(scope="module")
def own(tiny_folder: Path) -> Iterator[httpx.Client]:
    """A server with a small device and nothing below it."""
    service = EngineService.start(tiny_options(tiny_folder, device_tokens=2048, host_bytes=0))
    try:
        with in_background(create_app(service), service) as url, httpx.Client(base_url=url, timeout=60) as http:
            yield http
    finally:
        service.close()


def words(n: int) -> str:
    """Text of `n` characters, unlike any other."""
    return "".join(random.Random(next(SEEDS)).choices("abcdefgh ", k=n))


def asked(http: httpx.Client, *turns: str, **more: Any) -> dict[str, Any]:
    said = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    reply = http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": said, "max_tokens": 2, "temperature": 0, **more}
    )
    assert reply.status_code == 200, reply.text
    usage: dict[str, Any] = reply.json()["usage"]["longturn"]
    return usage


def test_the_life_of_a_prefix(own: httpx.Client) -> None:
    first = words(900)
    assert asked(own, first)["miss"].startswith(("never_stored: ", "diverged: "))
    assert asked(own, first)["miss"] is None
    assert asked(own, first, cache_salt="other")["miss"].startswith("salted_apart: ")
    assert own.delete("/v1/cache/device").status_code == 200
    cleared = asked(own, first)
    assert cleared["miss"].startswith("cleared: ")
    assert cleared["miss"].endswith("by hand")
    other = asked(own, words(1800))
    evicted = asked(own, first)
    assert evicted["miss"].startswith("evicted: ")
    assert evicted["miss"].endswith(f"to make room for request {other['request_id']}")
    assert evicted["computed"] > 100
    changed = asked(own, first[:500] + "!" + first[501:])
    at = changed["cached"]["device"]
    assert at > 400
    assert changed["miss"].startswith(f"diverged: an earlier prompt goes on differently from token {at} on, for ")


def test_every_wire_carries_it(own: httpx.Client) -> None:
    text = {"max_tokens": 2}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": words(300)}], **text}),
        ("/v1/completions", {"prompt": words(300), **text}),
        ("/v1/responses", {"input": words(300), "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": words(300)}], **text}),
        (
            "/v1beta/models/tiny:generateContent",
            {
                "contents": [{"role": "user", "parts": [{"text": words(300)}]}],
                "generationConfig": {"maxOutputTokens": 2},
            },
        ),
    ]
    for path, body in calls:
        reply = own.post(path, json={"model": "tiny", **body}, headers={"anthropic-version": "2023-06-01"})
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        usage = answer.get("usage") or answer["usageMetadata"]
        assert usage["longturn"]["miss"].partition(":")[0] in ("never_stored", "diverged", "salted_apart"), path


def test_a_stream_carries_it_too(own: httpx.Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": words(300)}], "max_tokens": 2}
    causes = []
    for _ in range(2):
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with own.stream("POST", "/v1/chat/completions", json=streamed) as reply:
            chunks = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
        causes.append(chunks[-1]["usage"]["longturn"]["miss"])
    assert causes[0] is not None
    assert causes[1] is None


def test_other_clients_prompts_stay_unknown(tiny_folder: Path) -> None:
    service = EngineService.start(tiny_options(tiny_folder))
    try:
        with (
            in_background(create_app(service, Keys(["one", "two"])), service) as url,
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            prompt, causes = words(300), []
            for key, salt in (("one", "a"), ("one", "b"), ("two", "a"), ("two", "b")):
                http.headers["authorization"] = f"Bearer {key}"
                causes.append(asked(http, prompt, cache_salt=salt)["miss"].partition(":")[0])
            assert causes == ["never_stored", "salted_apart", "never_stored", "salted_apart"]
    finally:
        service.close()
