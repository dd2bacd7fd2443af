"""Gemini's API through Google's SDK, against the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from google import genai
from google.genai import errors, types

from longturn.dialects import gemini


@pytest.fixture(params=["v1", "v1beta"])
def google(request: pytest.FixtureRequest, url: str) -> Iterator[genai.Client]:
    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, api_version=request.param))
    yield client
    client.close()


def settings(**more: object) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**{"max_output_tokens": 12, "temperature": 0, **more})


def test_an_answer_and_its_stream_say_the_same(google: genai.Client):
    whole = google.models.generate_content(model="tiny", contents="Hello there", config=settings())
    chunks = list(google.models.generate_content_stream(model="tiny", contents="Hello there", config=settings()))
    assert whole.text
    assert whole.text == "".join(chunk.text or "" for chunk in chunks)
    assert whole.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert [chunk.candidates[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert len({chunk.response_id for chunk in chunks}) == 1
    assert whole.model_version == "tiny"


async def test_the_async_client_gets_the_same(google: genai.Client):
    whole = await google.aio.models.generate_content(model="tiny", contents="Hello there", config=settings())
    text = ""
    async for chunk in await google.aio.models.generate_content_stream(
        model="tiny", contents="Hello there", config=settings()
    ):
        text += chunk.text or ""
    assert whole.text == text


def test_every_chunk_counts_the_prompt_and_the_answer_so_far(google: genai.Client):
    chunks = list(google.models.generate_content_stream(model="tiny", contents="Count", config=settings()))
    counts = [chunk.usage_metadata for chunk in chunks]
    assert len({usage.prompt_token_count for usage in counts}) == 1
    answered = [usage.candidates_token_count for usage in counts]
    assert answered == sorted(answered)
    assert answered[-1] == 12
    for usage in counts:
        assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count


def test_counted_tokens_are_those_of_the_prompt(google: genai.Client, http: httpx.Client):
    counted = google.models.count_tokens(model="tiny", contents="How many?")
    answered = google.models.generate_content(model="tiny", contents="How many?", config=settings())
    assert counted.total_tokens == answered.usage_metadata.prompt_token_count
    whole = {
        "model": "models/tiny",
        "contents": [{"role": "user", "parts": [{"text": "How many?"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief"}]},
    }
    more = http.post("/v1beta/models/tiny:countTokens", json={"generateContentRequest": whole}).json()
    assert more["totalTokens"] > counted.total_tokens


def test_several_candidates_share_one_prompt(google: genai.Client):
    answer = google.models.generate_content(
        model="tiny", contents="Twice", config=settings(candidate_count=2, temperature=1, seed=7)
    )
    first, second = answer.candidates
    assert (first.index, second.index) == (0, 1)
    assert first.content.parts[0].text != second.content.parts[0].text
    assert answer.usage_metadata.candidates_token_count == 24
    once = google.models.count_tokens(model="tiny", contents="Twice").total_tokens
    assert answer.usage_metadata.prompt_token_count == once


def test_logprobs_come_with_the_tokens(google: genai.Client):
    answer = google.models.generate_content(
        model="tiny", contents="Sure?", config=settings(response_logprobs=True, logprobs=2)
    )
    [candidate] = answer.candidates
    chosen = candidate.logprobs_result.chosen_candidates
    assert "".join(token.token for token in chosen) == answer.text
    assert candidate.avg_logprobs == pytest.approx(sum(token.log_probability for token in chosen) / len(chosen))
    assert [len(top.candidates) for top in candidate.logprobs_result.top_candidates] == [2] * 12
    assert candidate.logprobs_result.top_candidates[0].candidates[0].token == chosen[0].token


def test_a_stop_sequence_ends_the_answer(google: genai.Client):
    whole = google.models.generate_content(model="tiny", contents="Stop", config=settings()).text
    cut = google.models.generate_content(model="tiny", contents="Stop", config=settings(stop_sequences=[whole[4:6]]))
    assert cut.text == whole[: whole.index(whole[4:6])]
    assert cut.candidates[0].finish_reason == types.FinishReason.STOP


def test_a_chat_goes_on_where_its_stream_ended(google: genai.Client):
    """The SDK keeps every chunk as a content of its own; the prompt must be the conversation all the same."""
    chat = google.chats.create(model="tiny", config=settings(max_output_tokens=40))
    question = "Tell me more about " + "the sea " * 90
    for _ in chat.send_message_stream(question):
        pass
    assert len(chat.get_history()) > 10
    first_length = google.models.count_tokens(model="tiny", contents=question).total_tokens
    second = list(chat.send_message_stream("And then?"))[-1].usage_metadata.model_dump()
    assert second["prompt_token_count"] > first_length + 40


def test_a_prefix_is_found_again_without_asking(google: genai.Client, http: httpx.Client):
    text = f"{google._api_client._http_options.api_version} implicit " + "again and again " * 150
    body = {"contents": [{"parts": [{"text": text}]}], "generationConfig": {"maxOutputTokens": 2}}
    cold, warm = (http.post("/v1beta/models/tiny:generateContent", json=body).json() for _ in range(2))
    for answer in (cold, warm):
        usage = answer["usageMetadata"]
        use = gemini.use(usage)
        assert usage["promptTokenCount"] == use.logical
        assert usage["cachedContentTokenCount"] in (0, use.cached_total)
    assert cold["usageMetadata"]["cachedContentTokenCount"] == 0
    assert warm["usageMetadata"]["cachedContentTokenCount"] == warm["usageMetadata"]["promptTokenCount"] - 1
    assert warm["usageMetadata"]["cacheTokensDetails"][0]["tokenCount"] > 1024


def test_a_short_prefix_does_not_count_as_cached_but_is_reused(http: httpx.Client):
    body = {"contents": [{"parts": [{"text": "short " * 50}]}], "generationConfig": {"maxOutputTokens": 2}}
    http.post("/v1/models/tiny:generateContent", json=body)
    usage = http.post("/v1/models/tiny:generateContent", json=body).json()["usageMetadata"]
    assert usage["cachedContentTokenCount"] == 0
    assert sum(usage["longturn"]["cached"].values()) == usage["promptTokenCount"] - 1


def test_both_spellings_and_numbers_as_texts_are_read(http: httpx.Client):
    camel = {
        "contents": [{"role": "user", "parts": [{"text": "Spell"}]}],
        "systemInstruction": {"parts": [{"text": "Well"}]},
        "generationConfig": {"maxOutputTokens": 4, "topK": 1, "stopSequences": ["q"]},
    }
    snake = {
        "contents": {"parts": {"text": "Spell"}},
        "system_instruction": {"parts": {"text": "Well"}},
        "generation_config": {"max_output_tokens": "4", "top_k": 1.0, "stop_sequences": ["q"], "seed": None},
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }
    first, second = (http.post("/v1beta/models/tiny:generateContent", json=body).json() for body in (camel, snake))
    assert first["candidates"] == second["candidates"]


def test_a_stream_without_sse_is_one_array(http: httpx.Client):
    body = {"contents": [{"parts": [{"text": "Array"}]}], "generationConfig": {"maxOutputTokens": 5, "temperature": 0}}
    response = http.post("/v1beta/models/tiny:streamGenerateContent", json=body)
    assert response.headers["content-type"] == "application/json"
    chunks = json.loads(response.text)
    assert chunks[-1]["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert chunks[-1]["usageMetadata"]["longturn"]["output"] == 5


def test_json_is_given_where_a_schema_asks_for_it(google: genai.Client):
    schema = types.Schema(
        type="OBJECT",
        properties={"ok": types.Schema(type="BOOLEAN"), "size": types.Schema(type="STRING", enum=["s", "l"])},
        required=["ok", "size"],
        property_ordering=["size", "ok"],
    )
    answer = google.models.generate_content(
        model="tiny",
        contents="Give JSON",
        config=settings(max_output_tokens=60, response_mime_type="application/json", response_schema=schema),
    )
    found = json.loads(answer.text)
    assert list(found) == ["size", "ok"]
    assert isinstance(found["ok"], bool)
    enum = types.Schema(type="STRING", enum=["yes", "no"])
    chosen = google.models.generate_content(
        model="tiny", contents="?", config=settings(response_mime_type="text/x.enum", response_schema=enum)
    )
    assert chosen.text in ("yes", "no")


@pytest.mark.parametrize(
    ("body", "status", "name", "said"),
    [
        ({}, 400, "INVALID_ARGUMENT", "contents is missing"),
        ({"contents": [{"parts": [{}]}]}, 400, "INVALID_ARGUMENT", "contents[0].parts[0]"),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]},
            400,
            "INVALID_ARGUMENT",
            "inlineData",
        ),
        ({"contents": [{"parts": [{"text": "x", "thought": True}]}]}, 400, "INVALID_ARGUMENT", "nothing to answer"),
        ({"contents": "hello"}, 400, "INVALID_ARGUMENT", "contents"),
        (
            {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"temperature": 9}},
            400,
            "INVALID_ARGUMENT",
            "temperature",
        ),
        ({"contents": [{"parts": [{"text": "x"}]}], "tools": [{"googleSearch": {}}]}, 400, "INVALID_ARGUMENT", "tools"),
        ({"contents": [{"parts": [{"text": "x " * 3000}]}]}, 400, "INVALID_ARGUMENT", "2048"),
    ],
)
def test_errors_have_googles_shape(http: httpx.Client, body: dict, status: int, name: str, said: str):
    for method in ("generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"):
        response = http.post(f"/v1beta/models/tiny:{method}", json=body)
        assert response.status_code == status
        error = response.json()["error"]
        assert (error["code"], error["status"]) == (status, name)
        assert said in error["message"]


def test_the_sdk_raises_its_own_errors(google: genai.Client):
    with pytest.raises(errors.ClientError) as raised:
        google.models.generate_content(model="other", contents="x")
    assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")
    assert "'tiny'" in raised.value.message


def test_an_unknown_method_is_not_found(http: httpx.Client):
    assert http.post("/v1/models/tiny:embedContent", json={}).json()["error"]["status"] == "NOT_FOUND"
    assert http.post("/v1/models/tiny:generateContent", content=b"{").json()["error"]["status"] == "INVALID_ARGUMENT"


def test_many_clients_at_once_get_their_own_answers(url: str):
    async def ask() -> list[str | None]:
        client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url))
        calls = [
            client.aio.models.generate_content(model="tiny", contents=f"Number {n % 3}", config=settings())
            for n in range(12)
        ]
        answers = [answer.text for answer in await asyncio.gather(*calls)]
        await client.aio.aclose()
        return answers

    answers = asyncio.run(ask())
    assert answers[:3] * 4 == answers
    assert len(set(answers)) == 3
