"""Clients that leave, and clients that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from longturn.engine import EngineService, Output, SamplingParams
from longturn.serve import create_app, in_background, respond
from longturn.serve.bridge import Answers
from tests.serve.conftest import tiny_options
from tests.serve.fake_service import FakeService

# Longer than any test would wait for.
PROMPT = {"model": "tiny", "prompt": "Once", "max_tokens": 2000}
ENDLESS = {**PROMPT, "ignore_eos": True}


def comes_to_rest(service: EngineService) -> bool:
    """Whether the engine soon has nothing to do, and nothing of its pool is in use."""
    for _ in range(100):
        state = service.state()
        if state.running == state.waiting == 0:
            device = state.cache.tiers[0]
            return device.used == device.evictable
        time.sleep(0.02)
    return False


def test_a_stream_that_nobody_reads_any_more_is_cancelled(http: httpx.Client, service: EngineService):
    with http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert service.state().running == 1
    assert comes_to_rest(service)


def test_a_client_that_does_not_wait_for_the_whole_is_noticed(http: httpx.Client, service: EngineService):
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json={**ENDLESS, "n": 3}, timeout=0.2)
    assert comes_to_rest(service)


def test_a_compaction_and_a_response_that_nobody_waits_for_are_cancelled(http: httpx.Client, service: EngineService):
    body = {"model": "tiny", "input": "x" * 900}

    def compact() -> None:
        for _ in range(10):  # a summary may end by itself, and in time
            http.post("/v1/responses/compact", json=body, timeout=0.2)

    with pytest.raises(httpx.ReadTimeout):
        compact()
    assert comes_to_rest(service)
    with http.stream("POST", "/v1/responses", json={**body, "stream": True}) as answer:
        next(answer.iter_lines())
    assert comes_to_rest(service)


@pytest.fixture
def narrow(tiny_folder: Path) -> Iterator[tuple[EngineService, str]]:
    """A server that computes one request at a time and lets one more wait."""
    service = EngineService.start(tiny_options(tiny_folder, max_running=1, max_waiting=1))
    with in_background(create_app(service), service) as url:
        yield service, url
    service.check_integrity()
    service.close()


def test_a_full_queue_is_said_so_and_leaves_nothing_behind(narrow: tuple[EngineService, str]):
    service, url = narrow
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with client.completions.create(**PROMPT, stream=True, extra_body={"ignore_eos": True}) as first:
        next(iter(first))
        with pytest.raises(openai.RateLimitError) as caught:
            # One of the two would still find a place.
            client.completions.create(model="tiny", prompt=["a", "b"], stream=True)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "queue_full"
        for _ in range(50):
            if service.state().waiting == 0:
                break
            time.sleep(0.02)
        assert service.state().waiting == 0
    assert comes_to_rest(service)


def test_a_waiting_client_that_leaves_gives_its_place_away(narrow: tuple[EngineService, str]):
    service, url = narrow
    with httpx.stream("POST", f"{url}/v1/completions", json={**ENDLESS, "stream": True}) as first:
        lines = first.iter_lines()  # kept, because letting go of it closes the connection
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={**ENDLESS, "stream": True}, timeout=0.2)
    assert comes_to_rest(service)


def test_silence_is_broken_by_comments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(respond, "KEEP_ALIVE", 0.02)
    fake = FakeService(["one"], reason=None)
    body = {"model": "tiny", "prompt": "Once", "stream": True}
    with (
        in_background(create_app(fake), fake) as url,
        httpx.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        seen = [next(lines) for _ in range(6)]
        assert seen[0].startswith("data: ")
        assert seen[2] == seen[4] == ": waiting"
    for _ in range(100):
        if fake.cancelled:
            break
        time.sleep(0.01)
    assert fake.cancelled == [fake.requests[0].id]


def test_outputs_for_a_loop_that_is_gone_are_dropped():
    fake = FakeService()

    async def ask() -> None:
        Answers(fake).ask("id", np.array([1, 2], np.int32), SamplingParams())

    asyncio.run(ask())
    # An exception here would end the engine's thread.
    fake.requests[0].on_output(Output("id", "late", (1,)))
