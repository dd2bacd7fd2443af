"""Answers of a required form, through the official SDK. A model of random weights is the harder one to hold to it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI
from pydantic_core import from_json

from longturn.engine import EngineOptions, EngineService
from longturn.ledger import RequestLine
from longturn.serve import create_app, in_background
from tests.schemas import DIGIT, SCHEMAS, WORD, record

RAIN = [{"role": "user", "content": "Rain?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in {
        "weather": record(city={"enum": ["Oslo", "Rome"]}, days=DIGIT),
        "add": record(a=DIGIT, b=DIGIT),
    }.items()
]
VALIDATORS = {tool["function"]["name"]: Draft202012Validator(tool["function"]["parameters"]) for tool in TOOLS}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def called(client: OpenAI, *, stream: bool, **more: Any) -> list[tuple[str, Any]]:
    """The calls of an answer that holds nothing else."""
    made = client.chat.completions.create(
        model="tiny", messages=RAIN, tools=TOOLS, temperature=1, max_tokens=1500, stream=stream, **more
    )
    if stream:
        choices = [chunk.choices[0] for chunk in made]
        assert not any(choice.delta.content for choice in choices)
        calls, reason = [c for choice in choices for c in choice.delta.tool_calls or ()], choices[-1].finish_reason
    else:
        choice = made.choices[0]
        assert choice.message.content is None
        calls, reason = choice.message.tool_calls, choice.finish_reason
    assert reason == "tool_calls"
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def answer(client: OpenAI, model: str, what: str, *, stream: bool, **more: Any) -> tuple[str, str]:
    """Text and finish reason."""
    messages = [{"role": "user", "content": f"Invent an example of {what}. Answer with JSON."}]
    made = client.chat.completions.create(model=model, messages=messages, temperature=1, stream=stream, **more)
    if not stream:
        return made.choices[0].message.content, made.choices[0].finish_reason
    choices = [chunk.choices[0] for chunk in made]
    return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


def check(client: OpenAI, model: str, name: str, *, stream: bool) -> None:
    schema, endless = SCHEMAS[name], name == "recursive"
    text, reason = answer(
        client, model, name, stream=stream, max_tokens=300 if endless else 1500, response_format=json_schema(schema)
    )
    if endless and reason == "length":  # no grammar makes a model stop nesting: what is there must be a beginning
        made, schema = from_json(text, allow_partial=True), json.loads(json.dumps(schema).replace('"required"', '"-"'))
    else:
        assert reason == "stop", text
        made = json.loads(text)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(made)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_kept(client: OpenAI, name: str, stream: bool) -> None:
    check(client, "tiny", name, stream=stream)


@pytest.fixture(scope="module")
def demo() -> Iterator[OpenAI]:
    service = EngineService.start(EngineOptions(served_name="demo", device_tokens=40_000, host_bytes=0))
    with (
        in_background(create_app(service), service) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
    service.check_integrity()
    service.close()


@pytest.mark.model
def test_the_demo_model_keeps_every_schema(demo: OpenAI) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda case: check(demo, "demo", case[1], stream=case[0] % 2 == 0), enumerate(SCHEMAS)))


@pytest.mark.model
def test_the_demo_model_calls_what_it_must(demo: OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    made = demo.chat.completions.create(
        model="demo", messages=messages, tools=TOOLS, tool_choice=named("weather"), temperature=1
    )
    [call] = made.choices[0].message.tool_calls
    assert call.function.name == "weather"
    VALIDATORS["weather"].validate(json.loads(call.function.arguments))


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"guided_regex": "[a-c]{4}-[0-9]+x"}, r"[a-c]{4}-[0-9]+x"),
        ({"structured_outputs": {"choice": ["yes", "no", "ja, ö"]}}, "yes|no|ja, ö"),
        ({"grammar": 'root ::= "<" item+ ">"\nitem ::= [0-9]{1,2} ";"'}, r"<([0-9]{1,2};)+>"),
        ({"guided_grammar": 'start: "a" /[0-9]/ | "b"'}, "a[0-9]|b"),
    ],
)
def test_other_grammars(client: OpenAI, fields: dict[str, Any], fits: str) -> None:
    text, reason = answer(client, "tiny", "anything", stream=False, max_tokens=1500, extra_body=fields)
    assert reason == "stop"
    assert re.fullmatch(fits, text)
    made = client.completions.create(model="tiny", prompt="p", max_tokens=1500, extra_body=fields)
    assert re.fullmatch(fits, made.choices[0].text)


def test_any_object(client: OpenAI) -> None:
    text, _ = answer(client, "tiny", "anything", stream=False, max_tokens=300, response_format={"type": "json_object"})
    assert re.match(r"\{\s*[\"}]", text)


def test_several_choices_each_fit(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "?"}]
    made = client.chat.completions.create(
        model="tiny", messages=messages, n=8, seed=1, extra_body={"guided_choice": ["one", "two", "three"]}
    )
    texts = [choice.message.content for choice in made.choices]
    assert set(texts) <= {"one", "two", "three"}
    assert len(set(texts)) > 1


def test_what_max_tokens_cuts_says_so(client: OpenAI) -> None:
    text, reason = answer(
        client, "tiny", "x", stream=False, max_tokens=5, response_format=json_schema(SCHEMAS["definitions"])
    )
    assert reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": json_schema({"type": "foo"})}, "response_format.json_schema.schema", "Invalid type"),
        ({"response_format": json_schema({"not": {}})}, "response_format.json_schema.schema", "not"),
        ({"guided_json": {"$ref": "#/$defs/x"}}, "guided_json", "does not exist"),
        ({"guided_regex": "("}, "guided_regex", "unclosed group"),
        ({"grammar": "root ::= ((("}, "grammar", "Expected"),
        ({"guided_grammar": "start: nope"}, "guided_grammar", "nope"),
        ({"guided_regex": "a", "min_tokens": 4}, "min_tokens", "guided_regex"),
    ],
)
def test_a_bad_grammar_is_refused_at_once(
    client: OpenAI, service: EngineService, fields: dict[str, Any], param: str, says: str
) -> None:
    lines: list[RequestLine] = []
    service.on_line(lines.append)
    for stream in (False, True):
        with pytest.raises(BadRequestError, match=says) as caught:
            answer(client, "tiny", "anything", stream=stream, extra_body=fields)
        assert caught.value.param == param
    assert not lines


def test_a_keyword_that_cannot_be_enforced_is_passed_over_unless_strict(client: OpenAI) -> None:
    schema = {**SCHEMAS["array"], "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    text, _ = answer(client, "tiny", "x", stream=False, max_tokens=200, response_format=form)
    Draft202012Validator(SCHEMAS["array"]).validate(json.loads(text))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "names"), [("required", {"weather", "add"}), (named("add"), {"add"})])
def test_a_forced_call_is_made(client: OpenAI, stream: bool, choice: Any, names: set[str]) -> None:
    # Whether a model of random weights makes another call is a matter of chance.
    calls = called(client, stream=stream, tool_choice=choice, parallel_tool_calls=False)
    assert len(calls) == 1
    for name, arguments in calls:
        assert name in names
        VALIDATORS[name].validate(arguments)


def test_a_bad_tool_is_refused(client: OpenAI) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": 3}}}
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=RAIN, tools=[bad], tool_choice="required")
    assert caught.value.param == "tools"


def test_a_free_answer_with_strict_tools_is_text(client: OpenAI) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    made = client.chat.completions.create(model="tiny", messages=RAIN, tools=strict, max_tokens=30)
    assert made.choices[0].message.content


def test_a_schema_that_takes_long_keeps_nobody_waiting(client: OpenAI, http: httpx.Client) -> None:
    """It is compiled beside the loop: others are answered meanwhile."""
    schema = {"anyOf": [record(**{f"key_{i}_{j}": WORD for j in range(14)}) for i in range(200)]}
    waits: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            answer, client, "tiny", "x", stream=False, max_tokens=5, response_format=json_schema(schema)
        )
        while not asked.done():
            began = time.perf_counter()
            http.get("/v1/models")
            waits.append(time.perf_counter() - began)
    assert asked.result()[1] == "length"
    assert len(waits) > 2
