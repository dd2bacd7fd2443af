"""Function calls reach Google's SDK, whole and streamed, and their results reach the model."""

from __future__ import annotations

import pytest
from google import genai
from google.genai import types

from longturn.errors import EngineStopped
from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService

WEATHER = types.FunctionDeclaration(
    name="weather",
    description="The weather in a city",
    parameters=types.Schema(type="OBJECT", properties={"city": types.Schema(type="STRING")}, required=["city"]),
)
SCRIPT = ["Let me ", "see.\n<tool", '_call>\n{"name": "weather", "argum', 'ents": {"city": "Oslo"}}\n</tool', "_call>"]


def ask(fake: FakeService, contents: object = "Rain?", *, stream: bool = False, mode: str = "AUTO", **more: object):
    calling = types.FunctionCallingConfig(mode=mode, **more)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[WEATHER])],
        tool_config=types.ToolConfig(function_calling_config=calling),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    with in_background(create_app(fake), fake) as url:
        client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url))
        method = client.models.generate_content_stream if stream else client.models.generate_content
        answer = method(model="tiny", contents=contents, config=config)
        return list(answer) if stream else answer


def prompt(fake: FakeService) -> str:
    return fake.tokenizer.decode(fake.requests[-1].tokens)


def test_a_call_is_parsed():
    answer = ask(FakeService(SCRIPT))
    text, call = answer.candidates[0].content.parts
    assert text.text == "Let me see."
    assert (call.function_call.name, call.function_call.args) == ("weather", {"city": "Oslo"})
    assert call.function_call.id
    assert answer.candidates[0].finish_reason == types.FinishReason.STOP


def test_a_call_is_streamed_whole():
    chunks = ask(FakeService(SCRIPT), stream=True)
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    assert "".join(part.text or "" for part in parts) == "Let me see."
    [call] = [part.function_call for part in parts if part.function_call]
    assert call.args == {"city": "Oslo"}


def test_the_functions_and_their_results_are_shown_to_the_model():
    fake = FakeService(["It rains."])
    history = [
        types.Content(role="user", parts=[types.Part(text="Rain?")]),
        types.Content(
            role="model",
            parts=[
                types.Part(text="hidden", thought=True),
                types.Part.from_function_call(name="weather", args={"city": "Oslo"}),
            ],
        ),
        types.Content(
            role="user", parts=[types.Part.from_function_response(name="weather", response={"result": "wet"})]
        ),
    ]
    assert ask(fake, history).text == "It rains."
    shown = prompt(fake)
    assert '"type": "object"' in shown
    assert '{"name": "weather", "arguments": {"city": "Oslo"}}' in shown
    assert "<tool_response>\nwet\n</tool_response>" in shown
    assert "hidden" not in shown


def test_mode_none_shows_the_functions_and_parses_nothing():
    fake = FakeService(SCRIPT)
    answer = ask(fake, mode="NONE")
    assert answer.text == "".join(SCRIPT)
    assert "weather" in prompt(fake)
    assert fake.requests[-1].params.grammar is None


@pytest.mark.parametrize("mode", ["ANY", "VALIDATED"])
def test_calls_that_are_asked_for_are_held_to_a_grammar(mode: str):
    fake = FakeService(SCRIPT)
    ask(fake, mode=mode, allowed_function_names=["weather"])
    assert "weather" in fake.requests[-1].params.grammar.source


def test_allowed_names_must_be_declared():
    with pytest.raises(genai.errors.ClientError, match="'wind'"):
        ask(FakeService(SCRIPT), mode="ANY", allowed_function_names=["wind"])


def test_an_error_midway_ends_the_stream_with_it():
    broken = FakeService(["So ", ""], "error", EngineStopped("the engine has failed"))
    with pytest.raises(genai.errors.ServerError, match="the engine has failed"):
        ask(broken, stream=True)
