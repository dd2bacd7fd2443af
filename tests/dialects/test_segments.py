"""Requests as segments: order, places, marks and settings, for every provider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.dialects.segments import LEVELS, PROVIDERS, parse, recognised
from longturn.dialects.segments.form import opened
from tests.explain.build import MORE, TURNS, request

every_provider = pytest.mark.parametrize("provider", PROVIDERS)


@every_provider
def test_render_order_and_paths(provider: str) -> None:
    body = request(provider, system=["One.", "Two."])
    prompt = parse(provider, body)
    levels = [LEVELS.index(segment.level) for segment in prompt.segments]
    assert levels == sorted(levels)
    assert [s.name for s in prompt.segments[:5]] == ["tools[0]", "tools[1]", "tools[2]", "system[0]", "system[1]"]
    kinds = [s.kind for s in prompt.segments if s.level == "messages"]
    assert kinds == ["text", "thinking", "tool_use", "tool_result", "text", "text"]
    for segment in prompt.segments:
        found = at(body, segment.path)
        assert found == segment.value or isinstance(found, dict)
    assert '"read"' in prompt.segments[0].text


@every_provider
def test_recognised_by_its_shape(provider: str) -> None:
    assert recognised(request(provider)) == provider


def test_marks_of_anthropic() -> None:
    body = request("anthropic")
    body["messages"][0]["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    body["cache_control"] = {"type": "ephemeral"}
    marks = parse("anthropic", body).marks
    assert [(mark.index, mark.ttl, mark.automatic) for mark in marks] == [
        (3, None, False),
        (4, "1h", False),
        (9, None, False),
    ]
    del body["messages"][-1]["content"][-1]["cache_control"]
    body["messages"][-1]["content"].append({"type": "text", "text": ""})
    last = parse("anthropic", body).marks[-1]
    assert (last.index, last.path, last.automatic) == (9, "$.cache_control", True)


@pytest.mark.parametrize("provider", ["openai", "openai-chat"])
def test_implied_marks_of_openai(provider: str) -> None:
    names = [
        parse(provider, body).segments[mark.index].kind + str(mark.index)
        for body in [request(provider, TURNS + MORE, model="gpt-5.6")]
        for mark in parse(provider, body).marks
    ]
    # The end of the instructions, the question, the result, and both later questions; no answer.
    assert names == ["text3", "text4", "tool_result7", "text9", "text11"]
    assert parse(provider, request(provider, model="gpt-5.5")).marks == ()
    assert parse(provider, request(provider, model="gpt-5.5")).marking == "automatic"


def test_strings_that_hold_json_are_opened() -> None:
    assert opened({"arguments": '{"a": [1, "{\\"b\\": 2}"]}', "text": "{no"}) == {
        "arguments": {"a": [1, {"b": 2}]},
        "text": "{no",
    }


scalars = st.none() | st.booleans() | st.integers() | st.text()
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
FIELDS = ("tools", "system", "messages", "input", "instructions", "contents", "systemInstruction", "cache_control")


@every_provider
@settings(max_examples=50)
@given(body=st.dictionaries(st.sampled_from(FIELDS), anything))
def test_nothing_breaks_the_parser(provider: str, body: dict[str, Any]) -> None:
    assert json.dumps([segment.text for segment in parse(provider, body).segments])


def at(body: Any, path: str) -> Any:
    """What stands at a JSON path as segments write it."""
    for step in path.removeprefix("$").replace("[", ".[").split(".")[1:]:
        body = body[int(step[1:-1])] if step.startswith("[") else body[step]
    return body
