"""Gemini's requests become talks, settings and schemas, in both spellings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from longturn.dialects import gemini
from longturn.dialects.gemini_schema import json_schema
from longturn.errors import RequestError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ASK = {"contents": [{"parts": [{"text": "Hi"}]}]}


def talk(*contents: dict, **more: object):
    return gemini.parse_generate({"contents": list(contents), **more}).talk()


def test_neighbours_of_one_side_become_one_message():
    found = talk(
        {"role": "user", "parts": [{"text": "one"}, {"text": "two"}]},
        {"parts": [{"text": "three"}]},
        {"role": "model", "parts": [{"text": "an"}]},
        {"role": "model", "parts": [{"text": ""}]},
        {"role": "model", "parts": [{"text": "swer"}]},
        {"role": "user", "parts": [{"text": "four"}]},
        system_instruction={"parts": [{"text": "be"}, {"text": "brief"}]},
    )
    assert found.messages == [
        {"role": "system", "content": "be\nbrief"},
        {"role": "user", "content": "one\ntwo\nthree"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "four"},
    ]
    assert found.tools is None


def test_calls_and_responses_find_each_other():
    call = {"functionCall": {"name": "f", "args": {"x": 1}}}
    found = talk(
        {"role": "model", "parts": [{"text": "mull", "thought": True}, call, call]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {"output": "first"}}},
                {"functionResponse": {"name": "f", "response": {"a": 1, "b": [2]}}},
                {"text": "go on"},
            ],
        },
        {"role": "model", "parts": [{"function_call": {"id": "mine", "name": "g"}, "thoughtSignature": "c2ln"}]},
        {"role": "function", "parts": [{"function_response": {"id": "mine", "name": "g", "response": {}}}]},
    )
    first, second = (
        {"id": f"call_{n}", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}} for n in range(2)
    )
    third = {"id": "mine", "type": "function", "function": {"name": "g", "arguments": {}}}
    assert found.messages == [
        {"role": "assistant", "content": "", "tool_calls": [first, second]},
        {"role": "tool", "name": "f", "tool_call_id": "call_0", "content": "first"},
        {"role": "tool", "name": "f", "tool_call_id": "call_1", "content": '{"a": 1, "b": [2]}'},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "", "tool_calls": [third]},
        {"role": "tool", "name": "g", "tool_call_id": "mine", "content": "{}"},
    ]


def test_what_is_cached_comes_before_the_request():
    cached = gemini.parse_cached_content(
        {
            "model": "models/m",
            "contents": [{"parts": [{"text": "book"}]}],
            "systemInstruction": {"parts": [{"text": "read"}]},
            "tools": [{"functionDeclarations": [{"name": "f"}]}],
        }
    )
    request = gemini.parse_generate({**ASK, "cached_content": "cachedContents/x"}).after(cached)
    assert [message["content"] for message in request.talk().messages] == ["read", "book\nHi"]
    assert request.uses_tools


def test_settings_are_read_as_the_engine_takes_them():
    request = gemini.parse_generate(
        {
            **ASK,
            "generationConfig": {
                "maxOutputTokens": "7",
                "topK": 40.0,
                "topP": 1,
                "stopSequences": ["a"],
                "responseLogprobs": True,
                "thinkingConfig": {"thinkingBudget": 0},
            },
        }
    )
    assert request.generation_config.sampling() == {
        "max_tokens": 7,
        "top_k": 40,
        "top_p": 1,
        "stop": ("a",),
        "logprobs": 0,
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "STRING", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "ARRAY", "items": {"type": "INTEGER", "format": "int32"}, "min_items": "2"},
         {"type": "array", "items": {"type": "integer"}, "minItems": 2}),
        ({"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True},
         {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]}),
        ({"type": "STRING", "format": "date-time", "example": "x"}, {"type": "string", "format": "date-time"}),
        ({"type": ["string", "null"], "additionalProperties": False},
         {"type": ["string", "null"], "additionalProperties": False}),
        ({"type": "TYPE_UNSPECIFIED", "defs": {"a": {"type": "STRING"}}, "ref": "#/$defs/a"},
         {"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}),
    ],
)  # fmt: skip
def test_googles_schemas_become_json_schemas(schema: dict, expected: dict):
    assert json_schema(schema) == expected


def test_properties_come_in_the_order_asked_for_and_no_others():
    schema = {
        "type": "OBJECT",
        "properties": {"a": {"type": "STRING"}, "b": {"type": "STRING"}, "c": {"type": "STRING"}},
        "propertyOrdering": ["c", "nowhere", "a"],
    }
    assert list(json_schema(schema)["properties"]) == ["c", "a", "b"]
    assert "additionalProperties" not in json_schema(schema)
    assert json_schema(schema, closed=True)["additionalProperties"] is False


@pytest.mark.parametrize(
    ("life", "until"),
    [
        ({"ttl": "300s"}, NOW + timedelta(seconds=300)),
        ({"ttl": "1.5s"}, NOW + timedelta(seconds=1.5)),
        ({"expireTime": "2026-01-01T01:00:00Z"}, NOW + timedelta(hours=1)),
        ({"expire_time": "2026-01-01T02:00:00.123456789+01:00"}, NOW + timedelta(hours=1, microseconds=123456)),
        ({}, None),
    ],
)
def test_a_life_is_a_time_or_an_end(life: dict, until: datetime | None):
    assert gemini.parse_cache_life(life).until(NOW) == until


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"generationConfig": {"candidateCount": 0}}, "candidateCount"),
        ({"generationConfig": {"maxOutputTokens": True}}, "maxOutputTokens"),
        ({"generationConfig": {"logprobs": 3}}, "responseLogprobs"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "responseMimeType"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "enum"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "text only"),
        ({"generationConfig": {"speechConfig": {"a": 1}}}, "speechConfig"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "needs functions"),
        ({"tools": [{"codeExecution": {}}]}, "codeExecution"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "x"}}]}]}, "fileData"),
        ({"contents": [{"parts": [{"text": "a", "functionCall": {"name": "f"}}]}]}, "only one of them"),
        ({"contents": [{"role": "robot", "parts": [{"text": "a"}]}]}, "role"),
        ({"contents": []}, "contents is missing"),
        ({"contents": [{"parts": [{"text": 5, "thoughtSignature": "secret"}]}]}, "contents[0].parts[0].text"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(more: dict, said: str):
    with pytest.raises(RequestError) as raised:
        gemini.parse_generate({**ASK, **more})
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)
