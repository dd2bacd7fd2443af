"""OpenAI's Responses through the official SDK, against the real engine."""

from __future__ import annotations

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

ASK = {"model": "tiny", "input": "Hello there", "max_output_tokens": 12, "temperature": 0}
ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
]


def test_an_answer_is_cut_where_it_is_too_long(client: OpenAI):
    answer = client.responses.create(**ASK, metadata={"trip": "oslo"})
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    [message] = answer.output
    assert (message.status, message.content[0].annotations) == ("incomplete", [])
    assert answer.output_text == message.content[0].text != ""
    assert (answer.metadata, answer.tools, answer.store) == ({"trip": "oslo"}, [], True)
    usage = answer.usage
    assert usage.output_tokens == usage.longturn["output"] == 12
    assert usage.input_tokens == usage.longturn["logical"]
    assert usage.total_tokens == usage.input_tokens + 12
    assert (usage.input_tokens_details.cache_write_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)


def test_a_stream_has_every_event_in_its_place(client: OpenAI):
    whole = client.responses.create(**ASK)
    events = list(client.responses.create(**ASK, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(dict.fromkeys(event.type for event in events)) == ORDER
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == whole.output_text
    assert (events[0].response.status, events[0].response.output, events[0].response.usage) == ("in_progress", [], None)
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1
    assert events[-1].response.usage.output_tokens == 12


def test_the_stream_helper_follows(client: OpenAI):
    with client.responses.stream(**{**ASK, "max_output_tokens": 2000, "input": "x" * 1900}) as stream:
        events = list(stream)
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == events[-2].item.content[0].text


async def test_async_clients(url: str):
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.responses.create(**ASK)
        text = ""
        async with client.responses.stream(**ASK) as stream:
            async for event in stream:
                text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == whole.output_text
        assert (await client.responses.input_tokens.count(model="tiny", input="Hello there")).input_tokens > 0


def test_an_answer_is_continued(client: OpenAI):
    first = client.responses.create(**ASK, instructions="Be brief.")
    second = client.responses.create(**{**ASK, "input": "Go on"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    spelled = client.responses.create(
        **{
            **ASK,
            "input": [
                {"role": "user", "content": "Hello there"},
                *[item.model_dump(exclude_none=True) for item in first.output],
                {"role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
            ],
        }
    )
    assert spelled.output_text == second.output_text
    assert spelled.usage.input_tokens == second.usage.input_tokens
    third = client.responses.create(**{**ASK, "input": "And?"}, previous_response_id=second.id)
    items = client.responses.input_items.list(third.id, order="asc")
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant", "user"]
    last = client.responses.input_items.list(third.id, limit=2)
    assert [item.content[0].text for item in last.data] == ["And?", second.output_text]
    assert last.has_more
    assert len(list(last)) == 5


def test_answers_are_kept_until_they_are_deleted(client: OpenAI):
    answer = client.responses.create(**ASK)
    assert client.responses.retrieve(answer.id) == answer
    client.responses.delete(answer.id)
    for forgotten in (answer.id, client.responses.create(**ASK, store=False).id):
        with pytest.raises(NotFoundError):
            client.responses.retrieve(forgotten)
        with pytest.raises(NotFoundError):
            client.responses.delete(forgotten)
        with pytest.raises(BadRequestError) as refused:
            client.responses.create(**ASK, previous_response_id=forgotten)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_stream_is_stored_too(client: OpenAI):
    *_, last = client.responses.create(**ASK, stream=True)
    assert client.responses.retrieve(last.response.id).output == last.response.output


def test_items_may_be_named_by_their_ids(client: OpenAI):
    first = client.responses.create(**ASK)
    [spelled, named] = [
        client.responses.create(**{**ASK, "input": [item, {"role": "user", "content": "Go on"}]})
        for item in (first.output[0].model_dump(), {"type": "item_reference", "id": first.output[0].id})
    ]
    assert spelled.output_text == named.output_text
    with pytest.raises(BadRequestError, match="not found"):
        client.responses.create(**{**ASK, "input": [{"type": "item_reference", "id": "msg_0"}]})


def test_tokens_are_counted_as_they_are_used(client: OpenAI):
    fields = {"input": "How long?", "instructions": "Count.", "model": "tiny"}
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    answer = client.responses.create(**fields, tools=tools, max_output_tokens=1)
    assert client.responses.input_tokens.count(**fields, tools=tools).input_tokens == answer.usage.input_tokens
    assert client.responses.input_tokens.count(**fields).input_tokens < answer.usage.input_tokens


def test_the_newest_items_are_kept_where_not_all_fit(client: OpenAI):
    items = [{"role": "user", "content": f"{number} " + "x" * 600} for number in range(6)]
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(**{**ASK, "input": items})
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    answer = client.responses.create(**{**ASK, "input": items}, truncation="auto")
    kept = client.responses.create(**{**ASK, "input": items[3:]})
    assert answer.usage.input_tokens == kept.usage.input_tokens
    assert answer.output_text == kept.output_text
    with pytest.raises(BadRequestError, match="last item"):
        client.responses.create(**{**ASK, "input": "x" * 3000}, truncation="auto")


def test_logprobs_come_where_they_are_included(client: OpenAI):
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [message] = client.responses.create(**ASK, **include).output
    found = message.content[0].logprobs
    assert len(found) == 12
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in found)
    streamed = [
        entry
        for event in client.responses.create(**ASK, **include, stream=True)
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in found]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search' are not supported"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"background": True}, "background", "not supported"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0]", "'computer_call' are not supported"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content", "reads text only"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing"),
        (
            {"input": [{"type": "compaction", "encrypted_content": "e30="}]},
            "input[0].encrypted_content",
            "did not make",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"input": []}, "input", "missing"),
        ({"input": 7}, "input", "list"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "needs a schema"),
        ({"temperature": 3}, "temperature", "at most 2"),
        ({"model": "huge"}, "model", "not served"),
        ({"prompt_cache_options": {"ttl": "5m"}}, "prompt_cache_options.ttl", "30m"),
    ],
)
def test_what_cannot_be_done_is_refused(http: httpx.Client, fields: dict, param: str, says: str):
    refused = http.post("/v1/responses", json={**ASK, **fields})
    error = refused.json()["error"]
    assert refused.status_code in (400, 404)
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=msg_0"])
def test_pages_that_cannot_be(client: OpenAI, http: httpx.Client, query: str):
    id = client.responses.create(**ASK).id
    refused = http.get(f"/v1/responses/{id}/input_items?{query}")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == query.partition("=")[0]
