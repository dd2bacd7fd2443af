"""Every field that asks for a form of the answer becomes one grammar, or one readable refusal."""

from __future__ import annotations

import json

import pytest

from longturn.dialects import grammar
from longturn.dialects.grammar import Grammar, ToolSchema
from longturn.dialects.openai import parse_chat, parse_completion
from longturn.errors import RequestError

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
NAMED = {"name": "x", "schema": SCHEMA}


def tool(name: str, **more: object) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **more}}


def chat(**fields):
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def asked(**fields) -> Grammar | None:
    """What a chat asks for, which a completion must ask for alike."""
    found = chat(**fields).grammar_for("tagged")
    assert parse_completion({"model": "m", "prompt": "p", **fields}).answer_grammar() == found
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "grammar": "", "guided_json": None, "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, grammar.json_object("response_format")),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            grammar.json_schema(SCHEMA, "response_format.schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "strict": True}}},
            grammar.json_schema(SCHEMA, "response_format.json_schema.schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            grammar.json_schema(SCHEMA, "response_format.json_schema.schema", strict=False),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, grammar.json_schema(SCHEMA, "structured_outputs.json")),
        ({"structured_outputs": {"json_object": True}}, grammar.json_object("structured_outputs.json_object")),
        ({"structured_outputs": {"regex": "a+"}}, grammar.regex("a+", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, grammar.choice(["a"], "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": "g"}}, grammar.grammar("g", "structured_outputs.grammar")),
        ({"guided_json": SCHEMA}, grammar.json_schema(SCHEMA, "guided_json")),
        ({"guided_json": json.dumps(SCHEMA)}, grammar.json_schema(SCHEMA, "guided_json")),
        ({"guided_regex": "a+"}, grammar.regex("a+", "guided_regex")),
        ({"guided_choice": ["é", 'a"b']}, grammar.choice(["é", 'a"b'], "guided_choice")),
        ({"guided_grammar": "g"}, grammar.grammar("g", "guided_grammar")),
        ({"json_schema": SCHEMA}, grammar.json_schema(SCHEMA, "json_schema")),
        ({"grammar": "root ::= x"}, grammar.grammar("root ::= x", "grammar")),
    ],
)
def test_each_field_asks_for_one_grammar(fields: dict, expected: Grammar | None) -> None:
    found = asked(**fields)
    assert found == expected
    assert (found and found.param) == (expected and expected.param)


def test_properties_keep_their_order() -> None:
    found = asked(json_schema=SCHEMA)
    assert found is not None
    assert list(json.loads(found.source)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": "text"}, "response_format", "got a string"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
            "got an integer",
        ),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_choice": []}, "guided_choice", "none of them empty"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none of them empty"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "None"),
        ({"guided_regex": "a", "grammar": "b"}, "grammar", "send one"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema", "send one"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict, param: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        asked(**fields)
    assert caught.value.param == param or (caught.value.param or "").startswith(f"{param}.")


def test_a_forced_call_leaves_no_other_answer() -> None:
    tools = [tool("f"), tool("g")]
    schemas = [ToolSchema(name, {"type": "object"}) for name in "fg"]
    for form in ("tagged", "bare"):
        request = chat(tools=tools, tool_choice="required", response_format={"type": "json_object"})
        assert request.grammar_for(form) == grammar.tool_calls(schemas, "tools", form=form)
        request = chat(tools=tools, tool_choice="required", parallel_tool_calls=False)
        assert request.grammar_for(form) == grammar.tool_calls(schemas, "tools", form=form, several=False)
        request = chat(tools=tools, tool_choice={"type": "function", "function": {"name": "g"}})
        assert request.grammar_for(form) == grammar.tool_calls(schemas[1:], "tools", form=form, several=False)


def test_free_calls() -> None:
    tools = [tool("f"), tool("g", strict=True)]
    schemas = [ToolSchema("f", {"type": "object"}), ToolSchema("g", {"type": "object"}, strict=True)]
    assert chat(tools=tools[:1]).grammar_for("tagged") is None
    assert chat(tools=tools, tool_choice="none").grammar_for("tagged") is None
    assert chat(tools=tools).grammar_for("tagged") == grammar.text_with_tool_calls(schemas, "tools")
    assert chat(tools=tools).grammar_for("bare") is None
    answer = {"response_format": {"type": "json_object"}}
    both = grammar.answer_or_tool_calls(grammar.json_object("response_format"), schemas, "tools")
    assert chat(tools=tools, **answer).grammar_for("tagged") == both
    assert chat(tools=tools, tool_choice="none", **answer).grammar_for("tagged") == grammar.json_object("x")
    assert chat(tools=tools, guided_regex="a").grammar_for("tagged") == grammar.regex("a", "x")


def test_only_allowed_tools_can_be_called() -> None:
    tools, schema = [tool("f"), tool("g")], ToolSchema("g", {"type": "object"})

    def allowed(mode: str) -> dict:
        named = [{"type": "function", "function": {"name": "g"}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}

    free, forced = (chat(tools=tools, tool_choice=allowed(mode)) for mode in ("auto", "required"))
    assert free.grammar_for("tagged") == grammar.text_with_tool_calls([schema], "tools")
    assert forced.grammar_for("bare") == grammar.tool_calls([schema], "tools", form="bare")
    # The prompt stays what it was, and with it what is cached.
    assert free.talk() == forced.talk() == chat(tools=tools).talk()
    with pytest.raises(RequestError, match="'g', which is not among the tools"):
        chat(tools=tools[:1], tool_choice=allowed("auto"))


def test_strict_is_not_shown_to_the_model() -> None:
    assert chat(tools=[tool("f", strict=True)]).talk().tools == chat(tools=[tool("f")]).talk().tools
