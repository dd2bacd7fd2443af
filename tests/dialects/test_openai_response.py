import json
import math

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from longturn.dialects import openai
from longturn.dialects.tool_calls import ToolCall
from longturn.errors import LedgerError, LongturnError, PromptTooLong, QueueFull
from longturn.ledger import RequestLine, TokenUse

USE = TokenUse(logical=100, cached={"device": 60, "disk": 20}, computed=20, output=9, reasoning=4, written=3)
LINE = RequestLine(request_id="r", session="s", model="m", started_at=1.0, use=USE)
CALL = ToolCall("call_1", "f", '{"a": 1}', "raw")
LOGPROBS = [openai.TokenLogprob("é", -0.1, (("é", -0.1), ("e", -2.5))), openai.TokenLogprob("\ufffd", -1.0)]


def strict(model, value):
    return model.model_validate(value, strict=True)


def test_usage_goes_out_and_comes_back():
    usage = openai.usage(LINE)
    assert usage["prompt_tokens"] == 100
    assert usage["completion_tokens"] == 9
    assert usage["total_tokens"] == 109
    assert usage["prompt_tokens_details"] == {"cached_tokens": 80, "cache_write_tokens": 3}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert usage["longturn"] == LINE.to_dict()
    assert openai.use(usage) == USE


def test_usage_of_another_server():
    usage = openai.usage(LINE)
    del usage["longturn"]
    expected = TokenUse(logical=100, cached={"provider": 80}, computed=20, output=9, reasoning=4, written=3)
    assert openai.use(usage) == expected
    bare = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": None}
    assert openai.use(bare) == TokenUse(logical=5, cached={}, computed=5, output=2)


def test_usage_that_does_not_add_up():
    with pytest.raises(LedgerError):
        openai.use({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}})


def test_chat_completion_is_what_the_sdk_expects():
    choices = [
        openai.chat_choice(0, "hi", "stop", logprobs=openai.chat_logprobs(LOGPROBS)),
        openai.chat_choice(1, "", "tool_calls", tool_calls=[CALL]),
        openai.chat_choice(2, "", "length"),
    ]
    answer = strict(ChatCompletion, openai.chat_completion("chatcmpl-1", "m", 7, choices, openai.usage(LINE)))
    text, tools, empty = answer.choices
    assert text.message.content == "hi"
    first, half = text.logprobs.content
    assert (first.token, first.bytes, [t.token for t in first.top_logprobs]) == ("é", [195, 169], ["é", "e"])
    assert half.bytes is None
    assert tools.message.content is None
    assert tools.message.tool_calls[0].function.arguments == '{"a": 1}'
    assert empty.message.content == ""
    assert answer.usage.prompt_tokens_details.cached_tokens == 80


def test_chat_stream_is_what_the_sdk_expects():
    stream = openai.ChatStream("chatcmpl-1", "m", 7, include_usage=True)
    chunks = [
        stream.role(0),
        stream.content(0, "é", openai.chat_logprobs(LOGPROBS[:1])),
        stream.tool_call(0, 0, CALL),
        stream.finish(0, "tool_calls"),
    ]
    assert all(chunk["usage"] is None for chunk in chunks)
    role, content, tool, finish = (strict(ChatCompletionChunk, chunk).choices[0] for chunk in chunks)
    assert (role.delta.role, role.delta.content) == ("assistant", "")
    assert content.delta.content == "é"
    assert (tool.delta.tool_calls[0].index, tool.delta.tool_calls[0].id) == (0, "call_1")
    assert finish.finish_reason == "tool_calls"
    last = strict(ChatCompletionChunk, stream.usage(openai.usage(LINE)))
    assert last.choices == []
    assert last.usage.total_tokens == 109


def test_streams_without_usage_do_not_mention_it():
    assert "usage" not in openai.ChatStream("i", "m", 7).role(0)
    assert "usage" not in openai.CompletionStream("i", "m", 7).text(0, "a")


def test_completions_are_what_the_sdk_expects():
    logprobs = openai.completion_logprobs(LOGPROBS, offset=10)
    assert logprobs == {
        "tokens": ["é", "\ufffd"],
        "token_logprobs": [-0.1, -1.0],
        "top_logprobs": [{"é": -0.1, "e": -2.5}, {}],
        "text_offset": [10, 11],
    }
    assert openai.completion_logprobs(LOGPROBS[1:])["top_logprobs"] is None
    choices = [openai.completion_choice(0, "é", "length", logprobs=logprobs)]
    answer = strict(Completion, openai.completion("cmpl-1", "m", 7, choices, openai.usage(LINE)))
    assert answer.choices[0].text == "é"

    stream = openai.CompletionStream("cmpl-1", "m", 7, include_usage=True)
    # The SDK types a chunk as a whole completion, whose finish_reason is never null.
    assert stream.text(1, "é")["choices"] == [{"index": 1, "text": "é", "logprobs": None, "finish_reason": None}]
    assert strict(Completion, stream.finish(1, "stop")).choices[0].finish_reason == "stop"
    assert strict(Completion, stream.usage(openai.usage(LINE))).usage.prompt_tokens == 100


def test_impossible_tokens_stay_json():
    never = [openai.TokenLogprob("a", -math.inf, (("b", -math.inf),))]
    for logprobs in (openai.chat_logprobs(never), openai.completion_logprobs(never)):
        assert json.dumps(logprobs, allow_nan=False).count("-9999.0") == 2


def test_models():
    listed = openai.model_list([openai.model_object("m", 7, 8192)])
    assert listed["object"] == "list"
    assert strict(Model, listed["data"][0]).id == "m"
    assert listed["data"][0]["max_model_len"] == 8192


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (PromptTooLong("too long"), 400, "invalid_request_error", "messages", "context_length_exceeded"),
        (QueueFull("busy", retry_after=3), 429, "rate_limit_error", None, "queue_full"),
        (LongturnError("broken"), 500, "server_error", None, None),
    ],
)
def test_errors(error, status, kind, param, code):
    assert openai.error_status(error) == status
    expected = {"message": str(error), "type": kind, "param": param, "code": code}
    assert openai.error_body(error) == {"error": expected}


def test_foreign_errors_keep_their_message_to_the_log():
    body = openai.error_body(KeyError("/home/ada/secret"))
    assert "secret" not in str(body)
    assert "KeyError" in body["error"]["message"]
