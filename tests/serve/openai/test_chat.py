"""Chat completions through the official SDK, against the real engine."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

HELLO = [{"role": "user", "content": "Hello there"}]


def test_the_model_is_listed_and_retrieved(client: OpenAI):
    [model] = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").max_model_len == 2048


def test_an_answer_and_its_stream_say_the_same(client: OpenAI):
    settings = {"model": "tiny", "messages": HELLO, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_adds_up_and_is_the_ledgers_line(client: OpenAI):
    messages = [{"role": "user", "content": "usage " * 30}]
    cold, warm = (
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, temperature=0) for _ in range(2)
    )
    for answer in (cold, warm):
        usage = answer.usage
        line = usage.longturn
        cached = usage.prompt_tokens_details.cached_tokens
        assert usage.prompt_tokens == line["logical"] == sum(line["cached"].values()) + line["computed"]
        assert cached == sum(line["cached"].values())
        assert usage.completion_tokens == line["output"] == 4
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert line["ttft_ms"] > 0
        assert line["request_id"] == answer.id
    assert warm.usage.longturn["cached"] == {"device": cold.usage.prompt_tokens - 1}
    assert cold.choices[0].message.content == warm.choices[0].message.content


def test_a_stream_ends_with_usage_when_asked(client: OpenAI):
    *chunks, last = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=5, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage.completion_tokens == last.usage.longturn["output"] == 5
    assert chunks[-1].choices[0].finish_reason == "length"


def test_several_choices_differ_by_seed_and_can_be_repeated(client: OpenAI):
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny", messages=HELLO, n=3, seed=7, max_tokens=12, extra_body={"ignore_eos": True}
        )
        assert answer.usage.completion_tokens == 36
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_several_choices_are_streamed_side_by_side(client: OpenAI):
    chunks = list(
        client.chat.completions.create(model="tiny", messages=HELLO, n=2, max_tokens=6, temperature=0, stream=True)
    )
    for index in (0, 1):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert own[-1].finish_reason == "length"


def test_logprobs_come_with_every_token(client: OpenAI):
    settings = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**settings).choices[0].logprobs.content
    assert len(whole) == 8
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in whole)
    streamed = [
        entry
        for chunk in client.chat.completions.create(**settings, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole]


def test_a_stop_string_ends_the_answer_and_is_not_in_it(client: OpenAI):
    settings = {"model": "tiny", "messages": HELLO, "temperature": 0}
    text = client.chat.completions.create(**settings, max_tokens=24).choices[0].message.content
    stop = text[6:8]
    choice = client.chat.completions.create(**settings, max_tokens=24, stop=stop).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == text[: text.index(stop)]


def test_an_answer_is_clipped_to_what_fits(client: OpenAI):
    messages = [{"role": "user", "content": "x" * 1990}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=10**6, temperature=0)
    assert answer.usage.total_tokens == 2048
    assert answer.choices[0].finish_reason == "length"


def test_the_session_is_in_the_line(client: OpenAI, http: httpx.Client):
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 1}
    answer = client.chat.completions.create(**body, extra_headers={"x-longturn-session": "tuesday"})
    assert answer.usage.longturn["session"] == "tuesday"
    answer = client.chat.completions.create(**body, extra_body={"session": "wednesday"})
    assert answer.usage.longturn["session"] == "wednesday"
    answer = client.chat.completions.create(**body, extra_headers={"x-claude-code-session-id": "thursday"})
    assert answer.usage.longturn["session"] == "thursday"
    refused = http.post("/v1/chat/completions", json=body, headers={"x-longturn-session": "x" * 257})
    assert refused.status_code == 400


async def test_twenty_clients_at_once(url: str):
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def whole(number: int) -> str:
            answer = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": f"number {number}"}], max_tokens=16, temperature=0
            )
            return answer.choices[0].message.content

        async def streamed(number: int) -> str:
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"number {number}"}],
                max_tokens=16,
                temperature=0,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        tasks = [ask(number) for number in range(10) for ask in (whole, streamed)]
        answers = await asyncio.gather(*tasks)
    assert answers[::2] == answers[1::2]
    assert len(set(answers)) == 10


@pytest.mark.parametrize("length", [30, 30_000])
def test_a_long_prompt_is_prepared_off_the_loop_with_the_same_result(http: httpx.Client, length: int):
    messages = [{"role": "user", "content": "a"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 1, "ignored": "x" * length}
    answer = http.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["prompt_tokens"] == http.post("/tokenize", json={"messages": messages}).json()["count"]
