"""What only a scripted model does: calls of tools, failures midway. Through the official SDK and our own client."""

from __future__ import annotations

import json

import pytest
from openai import BadRequestError, InternalServerError, OpenAI

from longturn.conversation.models.contract import Answer, ModelRequest
from longturn.conversation.models.openai_responses import OpenAIResponses
from longturn.conversation.parts import Text, ToolCall
from longturn.dialects import grammar
from longturn.dialects.grammar import ToolSchema
from longturn.errors import LongturnError, ProviderError
from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService

TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
TIME = {"type": "function", "name": "time", "parameters": {"type": "object"}, "strict": False}
SCRIPT = [
    "Let me ",
    "see.\n<tool",
    "_call>\n",
    '{"name": "weather", "argum',
    'ents": {"city": "Oslo"}}\n</tool_call>',
    "Well.",
]
ASK = {"model": "tiny", "input": "Rain?"}


def ask(fake: FakeService, **more: object):
    with in_background(create_app(fake), fake) as url, OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as sdk:
        answer = sdk.responses.create(**{**ASK, **more})
        return list(answer) if more.get("stream") else answer


def test_text_and_calls_are_items_in_their_order():
    answer = ask(FakeService(SCRIPT), tools=TOOLS)
    assert answer.status == "completed"
    before, call, after = answer.output
    assert (before.content[0].text, after.content[0].text) == ("Let me see.", "Well.")
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Oslo"})
    assert call.call_id != call.id


def test_the_same_is_streamed():
    events = ask(FakeService(SCRIPT), tools=TOOLS, stream=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    output = events[-1].response.output
    for kind in ("added", "done"):
        items = [event for event in events if event.type == f"response.output_item.{kind}"]
        assert [event.output_index for event in items] == [0, 1, 2]
        assert [event.item.id for event in items] == [item.id for item in output]
    assert [event.item for event in events if event.type == "response.output_item.done"] == output
    [delta] = [event for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert delta.delta == done.arguments == output[1].arguments
    assert (delta.output_index, delta.item_id, done.name) == (1, output[1].id, "weather")


def test_the_helper_sees_calls():
    fake = FakeService(SCRIPT[1:5])
    with (
        in_background(create_app(fake), fake) as url,
        OpenAI(base_url=f"{url}/v1", api_key="-") as sdk,
        sdk.responses.stream(**ASK, tools=TOOLS) as stream,
    ):
        seen = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert seen == [final.output[1].arguments]
    assert json.loads(seen[0]) == {"city": "Oslo"}


def test_a_result_is_given_back():
    fake = FakeService(SCRIPT[:5])
    with in_background(create_app(fake), fake) as url, OpenAI(base_url=f"{url}/v1", api_key="-") as sdk:
        first = sdk.responses.create(**ASK, tools=TOOLS)
        result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "Rain."}
        sdk.responses.create(model="tiny", input=[result], tools=TOOLS, previous_response_id=first.id)
        items = [{"role": "user", "content": "Rain?"}, *first.output, {**result, "output": [_text("Rain.")]}]
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "..."}
        sdk.responses.create(model="tiny", input=[items[0], reasoning, *items[1:]], tools=TOOLS)
    chained, spelled = (fake.tokenizer.decode(request.tokens) for request in fake.requests[1:])
    assert chained == spelled
    assert chained.endswith(
        "<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\nLet me see.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nRain.\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def _text(text: str) -> dict:
    return {"type": "input_text", "text": text}


def _allowed(mode: str) -> dict:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "weather"}]}


WEATHER, BOTH = (
    [ToolSchema("weather", {"type": "object"})],
    [ToolSchema(n, {"type": "object"}) for n in ("weather", "time")],
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "required"}, grammar.tool_calls(BOTH, "")),
        ({"tool_choice": "required", "parallel_tool_calls": False}, grammar.tool_calls(BOTH, "", several=False)),
        ({"tool_choice": {"type": "function", "name": "weather"}}, grammar.tool_calls(WEATHER, "", several=False)),
        ({"tool_choice": _allowed("auto")}, grammar.text_with_tool_calls(WEATHER, "")),
        ({"tool_choice": _allowed("required")}, grammar.tool_calls(WEATHER, "")),
        ({"tool_choice": "none", "text": FORMAT}, grammar.json_schema(SCHEMA, "")),
        ({"tool_choice": "none", "text": {"format": {"type": "json_object"}}}, grammar.json_object("")),
        ({"text": FORMAT}, grammar.answer_or_tool_calls(grammar.json_schema(SCHEMA, ""), BOTH, "")),
    ],
)
def test_what_is_asked_of_the_answer_is_held(fields: dict, expected: object):
    fake = FakeService(["{}"])
    answer = ask(fake, tools=[*TOOLS, TIME], **fields)
    [request] = fake.requests
    assert request.params.grammar == expected
    # Which tools may be called, and how, is no part of the prompt.
    plain = FakeService(["{}"])
    ask(plain, tools=[*TOOLS, TIME])
    assert request.tokens.tolist() == plain.requests[0].tokens.tolist()
    assert (
        answer.model_dump()["text"]["format"]["type"]
        == fields.get("text", {"format": {"type": "text"}})["format"]["type"]
    )


def test_tools_that_are_not_there_cannot_be_asked_for():
    with pytest.raises(BadRequestError, match="'time', which is not among"):
        ask(FakeService(["-"]), tools=TOOLS, tool_choice={"type": "function", "name": "time"})


def test_a_failure_midway_is_the_streams_end():
    events = ask(FakeService(["Let ", "me"], "error", LongturnError("it broke: restart it")), stream=True)
    *_, delta, error, failed = events
    assert (delta.type, error.type, failed.type) == ("response.output_text.delta", "error", "response.failed")
    assert (error.message, error.code, error.param) == ("it broke: restart it", "server_error", None)
    assert (failed.response.status, failed.response.error.code) == ("failed", "server_error")
    assert failed.sequence_number == error.sequence_number + 1 == len(events) - 1


def test_a_failure_before_an_answer_has_a_status():
    with pytest.raises(InternalServerError, match="it broke"):
        ask(FakeService(["Let "], "error", LongturnError("it broke: restart it")))


async def _answer(fake: FakeService) -> Answer:
    request = ModelRequest(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain?"}],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        session="monday",
    )
    with in_background(create_app(fake), fake) as url:
        model = OpenAIResponses("tiny", f"{url}/v1", "-")
        *_, answer = [part async for part in model.stream(request)]
        await model.close()
    assert isinstance(answer, Answer)
    return answer


async def test_our_own_client_understands():
    answer = await _answer(FakeService(SCRIPT[:5]))
    text, call = answer.parts
    assert isinstance(text, Text)
    assert isinstance(call, ToolCall)
    assert (text.text, call.tool, json.loads(call.arguments)) == ("Let me see.", "weather", {"city": "Oslo"})
    assert answer.finish == "tool_calls"
    assert answer.use.output == 5


async def test_our_own_client_sees_a_failure():
    with pytest.raises(ProviderError, match="it broke"):
        await _answer(FakeService(["Let "], "error", LongturnError("it broke: restart it")))
