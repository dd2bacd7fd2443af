"""Every provider through its own SDK, against a server that answers in its words."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from longturn.conversation.models.contract import Answer, Delta, Model, ModelRequest, answer_of
from longturn.conversation.models.openai_chat import OpenAIChat
from longturn.conversation.models.retrying import Retrying
from longturn.conversation.parts import Reasoning, Text, ToolCall
from longturn.conversation.window import Window
from longturn.errors import ContextOverflow, ProviderError
from longturn.ledger import TokenUse
from tests.conversation.models.replies import SSE, Provider, Reply, transcript
from tests.conversation.models.wires import CALLS, EVENTS, KINDS, error, error_event, model, stream, whole

TOOL = {
    "type": "function",
    "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object", "properties": {}}},
}
HELLO = ModelRequest([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], session="s")
SIGNATURES: dict[str, Any] = {
    "chat": {"chat": "reasoning_content"},
    "responses": {
        "responses": {
            "type": "reasoning",
            "id": "rs1",
            "summary": [{"type": "summary_text", "text": "Look first."}],
            "encrypted_content": "b64",
        }
    },
    "anthropic": {"anthropic": {"type": "thinking", "thinking": "Look first.", "signature": "sig"}},
    "gemini": {"gemini": {"c1": "c2ln"}},
}


async def pieces(asked: Model, request: ModelRequest = HELLO) -> tuple[list[Delta], Answer]:
    *deltas, answer = [piece async for piece in asked.stream(request)]
    assert isinstance(answer, Answer)
    await asked.close()
    return [delta for delta in deltas if isinstance(delta, Delta)], answer


async def pieces_left(answering: AsyncIterator[Delta | Answer]) -> list[Delta | Answer]:
    return [piece async for piece in answering]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_with_reasoning_calls_and_usage(api: Provider, kind: str):
    api.will(whole(kind))
    deltas, answer = await pieces(model(kind, api.url))
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "I read."
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == "Look first."
    reasoning, text, *calls = answer.parts
    assert reasoning == Reasoning("Look first.", SIGNATURES[kind])
    assert text == Text("I read.")
    assert calls == [ToolCall(*call) for call in CALLS]
    assert answer.finish == "tool_calls"
    written = 30 if kind == "anthropic" else 0
    reasoned = 3 if kind == "gemini" else 0
    assert answer.use == TokenUse(100, {"provider": 64}, 36, output=9, reasoning=reasoned, written=written)
    assert answer.raw_usage
    assert answer.id == "r1"


@pytest.mark.parametrize(
    ("kind", "name", "logical", "cached", "output"),
    [
        ("chat", "O2", 1500, 1024, 2),
        ("responses", "O4", 1500, 1024, 2),
        ("anthropic", "A2", 2056, 1800, 2),
        ("gemini", "G2", 1500, 1024, 2),
    ],
)
async def test_transcripts_of_the_real_providers(
    api: Provider, kind: str, name: str, logical: int, cached: int, output: int
):
    api.will(transcript(name))
    _, answer = await pieces(model(kind, api.url))
    assert answer.parts == (Text("hi"),)
    assert answer.finish == "stop"
    assert answer.use is not None
    assert (answer.use.logical, answer.use.cached_total, answer.use.output) == (logical, cached, output)


@pytest.mark.parametrize(("kind", "name"), [("chat", "O8"), ("anthropic", "A6"), ("gemini", "G10")])
async def test_transcripts_of_refusals(api: Provider, kind: str, name: str):
    api.will(reply := transcript(name))
    with pytest.raises(ProviderError) as caught:
        await pieces(model(kind, api.url))
    assert str(caught.value) == json.loads(reply.body)["error"]["message"]
    assert (caught.value.status, caught.value.retryable) == (400, False)


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Read a.py"},
    {
        "role": "assistant",
        "content": "I read.",
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in CALLS
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "print()"},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this"},
            {"type": "file", "file": {"name": "a.png", "media_type": "image/png", "digest": "d1", "size": 3}},
            {"type": "file", "file": {"name": "n.txt", "media_type": "text/plain", "digest": "d2", "size": 5}},
            {"type": "file", "file": {"name": "x.zip", "media_type": "application/zip", "digest": "d3", "size": 1000}},
        ],
    },
]
NOTES = ["And this", "[file n.txt]\nnotes", "[file x.zip, application/zip, 1,000 bytes: its content is not shown]"]


def request(kind: str) -> ModelRequest:
    messages = [dict(message) for message in MESSAGES]
    messages[2]["reasoning"] = [
        {"text": "Look first.", "data": SIGNATURES[kind]},
        {"text": "Of another.", "data": {"elsewhere": {}}},
    ]
    return ModelRequest(messages, [TOOL], max_output=77, session="s", load={"d1": b"PNG", "d2": b"notes"}.__getitem__)


async def test_what_chat_is_sent(api: Provider):
    api.will(whole("chat"))
    await pieces(model("chat", api.url), request("chat"))
    asked = api.asked[0]
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer KEY"
    assert asked.headers["x-longturn-session"] == "s"
    assert asked.body["max_tokens"] == 77
    assert asked.body["tools"] == [TOOL]
    assert "tool_choice" not in asked.body
    assistant, first = asked.body["messages"][2:4]
    assert assistant == {**MESSAGES[2], "reasoning_content": "Look first."}
    assert first == MESSAGES[3]
    said, picture, *rest = asked.body["messages"][5]["content"]
    assert picture["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"PNG").decode()
    assert [piece["text"] for piece in (said, *rest)] == NOTES


async def test_what_responses_are_sent(api: Provider):
    api.will(whole("responses"))
    await pieces(model("responses", api.url), request("responses"))
    body = api.asked[0].body
    assert body["store"] is False
    assert body["prompt_cache_key"] == "s"
    assert body["max_output_tokens"] == 77
    assert body["tools"] == [{"type": "function", "strict": False, **TOOL["function"]}]
    system, user, reasoning, assistant, call, _, result, empty, last = body["input"]
    assert system == {"role": "developer", "content": "Be brief."}
    assert user["content"] == [{"type": "input_text", "text": "Read a.py"}]
    assert reasoning == SIGNATURES["responses"]["responses"]
    assert assistant == {"role": "assistant", "content": "I read."}
    assert call == {"type": "function_call", "call_id": "c1", "name": "read", "arguments": CALLS[0][2]}
    assert result == {"type": "function_call_output", "call_id": "c1", "output": "print()"}
    assert empty["output"] == ""
    assert [piece["type"] for piece in last["content"]] == ["input_text", "input_image", "input_text", "input_text"]


async def test_what_anthropic_is_sent(api: Provider):
    api.will(whole("anthropic"))
    await pieces(model("anthropic", api.url), request("anthropic"))
    body = api.asked[0].body
    assert api.asked[0].path == "/v1/messages"
    mark = {"type": "ephemeral"}
    assert body["cache_control"] == mark
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert body["max_tokens"] == 77
    assert body["tools"][0]["input_schema"] == TOOL["function"]["parameters"]
    user, assistant, results = body["messages"]
    assert user == {"role": "user", "content": [{"type": "text", "text": "Read a.py"}]}
    assert [block["type"] for block in assistant["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert assistant["content"][0] == SIGNATURES["anthropic"]["anthropic"]
    assert assistant["content"][2]["input"] == {"path": "a.py"}
    kinds = ["tool_result", "tool_result", "text", "image", "text", "text"]
    assert [block["type"] for block in results["content"]] == kinds
    assert results["content"][1] == {"type": "tool_result", "tool_use_id": "c2"}


async def test_what_gemini_is_sent(api: Provider):
    api.will(whole("gemini"))
    await pieces(model("gemini", api.url), request("gemini"))
    body = api.asked[0].body
    assert api.asked[0].path.endswith("/models/m:streamGenerateContent?alt=sse")
    assert body["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert body["generationConfig"]["maxOutputTokens"] == 77
    user, assistant, results = body["contents"]
    assert [user["role"], assistant["role"], results["role"]] == ["user", "model", "user"]
    said, call, other = assistant["parts"]
    assert said == {"text": "I read."}
    assert call["thoughtSignature"] == "c2ln"
    assert call["functionCall"] == {"name": "read", "args": {"path": "a.py"}}
    assert "thoughtSignature" not in other
    assert results["parts"][0]["functionResponse"] == {"name": "read", "response": {"result": "print()"}}
    assert results["parts"][3]["inlineData"]["data"] == base64.b64encode(b"PNG").decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_disabled_tools_stay_in_the_prefix(api: Provider, kind: str):
    api.will(whole(kind))
    await pieces(model(kind, api.url), ModelRequest(HELLO.messages, [TOOL], use_tools=False))
    body = api.asked[0].body
    assert body["tools"]
    if kind == "gemini":
        assert body["toolConfig"]["functionCallingConfig"]["mode"] == "NONE"
    else:
        # Anthropic would lose the cache of all messages for it.
        assert body.get("tool_choice") == (None if kind == "anthropic" else "none")


OVERFLOWS = {
    "chat": ("context_length_exceeded", "too many tokens"),
    "responses": (None, "Your input exceeds the context window of this model."),
    "anthropic": ("invalid_request_error", "prompt is too long: 204914 tokens > 200000 maximum"),
    "gemini": ("INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_overflow_is_recognised(api: Provider, kind: str):
    api.will(error(kind, 400, *OVERFLOWS[kind]))
    with pytest.raises(ContextOverflow):
        await pieces(model(kind, api.url))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_before_the_answer_is_retried_when_the_provider_says_when(api: Provider, kind: str):
    code = {"gemini": "RESOURCE_EXHAUSTED", "anthropic": "rate_limit_error"}.get(kind, "rate_limit_exceeded")
    api.will(error(kind, 429, code, "slow down", **{"retry-after": "0"}), whole(kind))
    _, answer = await pieces(Retrying(model(kind, api.url), wait=100))
    assert answer.parts[1] == Text("I read.")
    assert len(api.asked) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_in_a_stream_is_retried_while_nothing_was_seen(api: Provider, kind: str):
    code = {"gemini": "UNAVAILABLE", "anthropic": "overloaded_error"}.get(kind, "server_error")
    broken = error_event(kind, code, "overloaded")
    api.will(stream(kind, [broken]), whole(kind))
    _, answer = await pieces(Retrying(model(kind, api.url), wait=0.001))
    assert answer.finish == "tool_calls"
    api.will(stream(kind, [*EVENTS[kind]()[:6][: 3 if kind == "gemini" else 6], broken]), whole(kind))
    api.replies.popleft()
    asked = Retrying(model(kind, api.url), wait=0.001)
    answering = asked.stream(HELLO)
    assert isinstance(await anext(answering), Delta)
    with pytest.raises(ProviderError, match="overloaded") as caught:
        await pieces_left(answering)
    assert caught.value.retryable
    assert len(api.asked) == 3
    await asked.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_that_breaks_off(api: Provider, kind: str):
    api.will(stream(kind, EVENTS[kind]()[:3], cut=True))
    with pytest.raises(ProviderError) as caught:
        await pieces(model(kind, api.url))
    assert caught.value.retryable


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_ends_without_an_end(api: Provider, kind: str):
    api.will(stream(kind, EVENTS[kind]()[:3]))
    with pytest.raises(ProviderError, match="broke off"):
        await pieces(model(kind, api.url))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_is_not_retried(api: Provider, kind: str):
    api.will(error(kind, 401, "bad_key", "wrong key"))
    with pytest.raises(ProviderError, match="wrong key") as caught:
        await pieces(Retrying(model(kind, api.url)))
    assert caught.value.status == 401
    assert len(api.asked) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_there(kind: str):
    with pytest.raises(ProviderError, match="cannot be reached") as caught:
        await pieces(model(kind, "http://127.0.0.1:9"))
    assert caught.value.retryable


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_a_provider_would_say(api: Provider, kind: str):
    api.will(Reply("<html>", 404, "text/html"))
    with pytest.raises(ProviderError, match=r"404|cannot be read") as caught:
        await pieces(model(kind, api.url))
    assert not caught.value.retryable


@pytest.mark.parametrize("kind", KINDS)
async def test_a_silent_provider_times_out(api: Provider, kind: str):
    api.will(Reply("", kind=SSE, hang=True))
    timeout = 0.2 if kind == "gemini" else httpx2.Timeout(0.2)
    with pytest.raises(ProviderError, match="cannot be reached") as caught:
        await pieces(model(kind, api.url, timeout=timeout))
    assert caught.value.retryable


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_the_stream_cancels_the_request(api: Provider, kind: str):
    api.will(stream(kind, EVENTS[kind]()[:6][: 3 if kind == "gemini" else 6], hang=True))
    asked = model(kind, api.url)
    answering = asked.stream(HELLO)
    assert isinstance(await anext(answering), Delta)
    await answering.aclose()
    assert await asyncio.to_thread(api.left.wait, 5)
    await asked.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_usage_that_does_not_add_up_does_not_cost_the_answer(api: Provider, kind: str):
    text = whole(kind).body.replace('"cached_tokens": 64', '"cached_tokens": 6400')
    text = text.replace('"cachedContentTokenCount": 64', '"cachedContentTokenCount": 6400')
    text = text.replace('"cache_read_input_tokens": 64', '"cache_read_input_tokens": -64')
    api.will(Reply(text, kind=SSE))
    _, answer = await pieces(model(kind, api.url))
    assert answer.parts[1] == Text("I read.")
    assert answer.use is None


WINDOWS = {
    "chat": {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]},
    "responses": {"object": "list", "data": [{"id": "m", "object": "model", "context_window": 4096}]},
    "anthropic": {"type": "model", "id": "m", "display_name": "M", "max_input_tokens": 4096, "max_tokens": 512},
    "gemini": {"name": "models/m", "inputTokenLimit": 4096, "outputTokenLimit": 512},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_windows(api: Provider, kind: str):
    api.will(Reply(json.dumps(WINDOWS[kind])))
    asked = model(kind, api.url)
    expected = {"anthropic": Window(4096, 512), "gemini": Window(4608, 512, 4096)}.get(kind, Window(4096, 1024))
    assert await asked.window() == expected
    await asked.close()


async def test_a_server_that_does_not_tell_its_window(api: Provider):
    # Its name may be that of a well-known model, and yet it may be served with a window of any size.
    api.will(Reply(json.dumps({"object": "list", "data": [{"id": "gpt-4o", "object": "model"}]})))
    asked = OpenAIChat("gpt-4o", api.url)
    assert await asked.window() is None
    await asked.close()
    own = OpenAIChat("gpt-4o", None, "KEY")
    window = await own.window()
    assert window is not None
    assert window.context == 128_000
    await own.close()


async def test_anthropic_is_sent_no_block_of_space(api: Provider):
    api.will(whole("anthropic"))
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": " \n"},
        {"role": "user", "content": "Go"},
    ]
    await pieces(model("anthropic", api.url), ModelRequest(said))
    (only,) = api.asked[0].body["messages"]
    assert [block["text"] for block in only["content"]] == ["Hi", "Go"]


async def test_anthropic_is_asked_for_no_more_than_the_model_can_answer(api: Provider):
    api.will(Reply(json.dumps(WINDOWS["anthropic"])), whole("anthropic"))
    asked = model("anthropic", api.url)
    await asked.window()
    await pieces(asked)
    assert api.asked[1].body["max_tokens"] == 512


async def test_the_answer_alone(api: Provider):
    api.will(whole("chat"))
    asked = model("chat", api.url)
    assert (await answer_of(asked, HELLO)).id == "r1"
    await asked.close()
