"""Tool calls reach the SDK, whole and streamed. The script stands in for a model that makes them."""

from __future__ import annotations

import json

import pytest
from openai import OpenAI

from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SCRIPT = [
    "Let me ",
    "see.\n<tool",
    "_call>\n",
    '{"name": "weather", "argum',
    'ents": {"city": "Oslo"}}\n</tool',
    "_call>",
]
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Rain?"}]}


def ask(fake: FakeService, **more: object):
    with in_background(create_app(fake), fake) as url:
        answer = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).chat.completions.create(**ASK, **more)
        return list(answer) if more.get("stream") else answer.choices[0]


def test_a_call_is_parsed():
    choice = ask(FakeService(SCRIPT), tools=TOOLS)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})


def test_a_call_is_streamed():
    chunks = ask(FakeService(SCRIPT), tools=TOOLS, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    [[call]] = [delta.tool_calls for delta in deltas if delta.tool_calls]
    assert (call.index, call.function.name) == (0, "weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_alone_has_no_content():
    choice = ask(FakeService(['{"name": "weather", ', '"parameters": {}}']), tools=TOOLS)
    assert choice.message.content is None
    assert choice.message.tool_calls[0].function.arguments == "{}"


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_nothing_is_parsed(more: dict):
    choice = ask(FakeService(SCRIPT), **more)
    assert choice.message.content == "".join(SCRIPT)
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_a_call_that_is_cut_off_stays_text():
    choice = ask(FakeService(SCRIPT[:4], "length"), tools=TOOLS)
    assert choice.finish_reason == "length"
    assert choice.message.content == "".join(SCRIPT[:4])


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_choice_is_accepted(tool_choice: object):
    assert ask(FakeService(["No."]), tools=TOOLS, tool_choice=tool_choice).message.content == "No."
