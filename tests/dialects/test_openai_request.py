import json

import pytest

from longturn.dialects.openai import parse_chat, parse_completion
from longturn.errors import RequestError

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}, "strict": True}


def chat(**fields):
    return parse_chat(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def complete(**fields):
    return parse_completion({"model": "m", "prompt": "p", **fields})


def refusal(parse, **fields):
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return caught.value


def test_a_plain_chat_request_sends_no_sampling_of_its_own():
    request = chat(metadata={"a": 1}, store=False, temperature=None)
    assert request.sampling() == {}
    assert request.choices == 1
    assert not request.include_usage
    assert not request.uses_tools
    assert request.template_tools() is None


def test_sampling_fields():
    sent = {
        "max_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": 3,
        "stop": "END",
        "stop_token_ids": [1, 2],
        "presence_penalty": 1,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100},
        "ignore_eos": True,
        "min_tokens": 2,
    }
    expected = sent | {"stop": ("END",), "stop_token_ids": (1, 2), "logit_bias": {7: -100.0}}
    assert chat(**sent).sampling() == expected
    assert complete(**sent).sampling() == expected
    assert chat(max_tokens=5, max_completion_tokens=6).sampling() == {"max_tokens": 6}
    assert chat(logprobs=True).sampling() == {"logprobs": 0}
    assert chat(logprobs=True, top_logprobs=4).sampling() == {"logprobs": 4}
    assert complete(logprobs=2).sampling() == {"logprobs": 2}


def test_extensions():
    request = chat(session="s", priority=-1, cache_salt="c", chat_template_kwargs={"enable_thinking": False}, n=2)
    assert (request.session, request.priority, request.cache_salt, request.choices) == ("s", -1, "c", 2)
    assert request.chat_template_kwargs == {"enable_thinking": False}
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage


def test_messages_for_the_template():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    broken = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    request = chat(
        messages=[
            {
                "role": "developer",
                "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
            },
            {"role": "user", "content": "hi", "name": "Ada"},
            {"role": "assistant", "content": None, "tool_calls": [call, broken]},
            {"role": "tool", "content": "1", "tool_call_id": "c1"},
        ]
    )
    system, user, assistant, tool = request.template_messages()
    assert system == {"role": "system", "content": "a\nb"}
    assert user == {"role": "user", "content": "hi", "name": "Ada"}
    assert assistant["content"] == ""
    assert [c["function"]["arguments"] for c in assistant["tool_calls"]] == [{"a": 1}, '{"a": ']
    assert tool == {"role": "tool", "content": "1", "tool_call_id": "c1"}


def test_tools():
    named = {"type": "function", "function": {"name": "f"}}
    for choice in (None, "auto", "required", named):
        request = chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=True)
        assert request.uses_tools
        assert request.template_tools() == [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        ]
    assert not chat(tools=[TOOL], tool_choice="none").uses_tools
    assert not chat(tool_choice="auto").uses_tools
    assert refusal(chat, tool_choice="required").param == "tool_choice"
    assert refusal(chat, tools=[TOOL], tool_choice="some").param == "tool_choice"
    assert refusal(chat, tool_choice=named).param == "tool_choice"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_prompts(prompt, prompts):
    assert complete(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [None, 3, [], [[]], ["a", 1], [True], [1.5], [["a"]], {}])
def test_bad_prompts(prompt):
    assert refusal(complete, prompt=prompt).param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"max_tokens": True}, "max_tokens", "integer (got a boolean)"),
        ({"max_tokens": "5"}, "max_tokens", "integer (got a string)"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"temperature": "hot"}, "temperature", "number (got a string)"),
        ({"temperature": True}, "temperature", "number (got a boolean)"),
        ({"stream": 1}, "stream", "boolean"),
        ({"stop": 3}, "stop", "list"),
        ({"stop": ["a", 3]}, "stop[1]", "string"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": [1]}, "logit_bias", "dict"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"session": ""}, "session", "at least 1"),
        ({"session": 7}, "session", "string"),
        ({"priority": "high"}, "priority", "integer"),
        ({"model": None}, "model", "string (got null)"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "'system', 'developer', 'user'"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1]", "content is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "text only"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "must look like"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content", "must look like"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ({"logprobs": 2}, "logprobs", "boolean"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"functions": [{}]}, "functions", "tools"),
    ],
)
def test_wrong_chat_requests_are_refused_readably(fields, param, says):
    error = refusal(chat, **fields)
    assert error.param == param
    assert says in str(error)
    assert error.status == 400


def test_unsupported_completion_fields():
    assert refusal(complete, echo=True).param == "echo"
    assert refusal(complete, best_of=3).param == "best_of"
    assert refusal(complete, suffix="x").param == "suffix"
    assert refusal(complete, logprobs=True).param == "logprobs"
    assert complete(echo=False, best_of=1, suffix=None).choices == 1


def test_missing_fields_are_named():
    assert refusal(lambda: parse_chat(b'{"messages": []}')).param == "model"
    assert refusal(lambda: parse_completion(b'{"model": "m"}')).param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"\xff",
        b'{"model": NaN}',
        b'{"model": "\\ud83d"}',
        b"[" * 100_000,
    ],
)
def test_bodies_that_are_no_json_object(body):
    assert refusal(lambda: parse_chat(body)).param is None


def test_content_never_enters_an_error():
    error = refusal(chat, messages=[{"role": "user", "content": {"secret": "hunter2"}}], temperature="hunter2")
    assert "hunter2" not in str(error)
