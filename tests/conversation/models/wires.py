"""The same answer in every provider's words: reasoning, text, two calls and usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from longturn.conversation.models.anthropic_messages import AnthropicMessages
from longturn.conversation.models.contract import Model
from longturn.conversation.models.gemini import Gemini
from longturn.conversation.models.openai_chat import OpenAIChat
from longturn.conversation.models.openai_responses import OpenAIResponses
from tests.conversation.models.replies import SSE, Reply, events

KINDS = ("chat", "responses", "anthropic", "gemini")
CALLS = (("c1", "read", '{"path": "a.py"}'), ("c2", "list", "{}"))


def model(kind: str, url: str, **changes: Any) -> Model:
    made = {"chat": OpenAIChat, "responses": OpenAIResponses, "anthropic": AnthropicMessages, "gemini": Gemini}
    base = f"{url}/v1" if kind in ("chat", "responses") else url
    return made[kind]("m", base, "KEY", **changes)


def chat(usage: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Look "},
        {"reasoning_content": "first."},
        {"content": "I "},
        {"content": "read."},
        *(
            {"tool_calls": [{"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}
            for i, (id, name, _) in enumerate(CALLS)
        ),
        *(
            {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}
            for i, (_, _, text) in enumerate(CALLS)
            for piece in (text[:5], text[5:])
        ),
    ]
    counts = usage or {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
    common = {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return [
        *({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas),
        {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {**common, "choices": [], "usage": counts},
    ]


def responses() -> list[dict[str, Any]]:
    output = [
        {
            "type": "reasoning",
            "id": "rs1",
            "summary": [{"type": "summary_text", "text": "Look first."}],
            "encrypted_content": "b64",
        },
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I read.", "annotations": []}],
        },
        *(
            {
                "type": "function_call",
                "id": f"f{id}",
                "call_id": id,
                "name": name,
                "arguments": text,
                "status": "completed",
            }
            for id, name, text in CALLS
        ),
    ]
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 109,
    }
    common = {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return [
        {"type": "response.created", "response": {**common, "status": "in_progress", "output": []}},
        {
            "type": "response.reasoning_summary_text.delta",
            "item_id": "rs1",
            "output_index": 0,
            "summary_index": 0,
            "delta": "Look first.",
        },
        *(
            {
                "type": "response.output_text.delta",
                "item_id": "m1",
                "output_index": 1,
                "content_index": 0,
                "delta": piece,
                "logprobs": [],
            }
            for piece in ("I ", "read.")
        ),
        {"type": "response.completed", "response": {**common, "status": "completed", "output": output, "usage": usage}},
    ]


def anthropic() -> list[dict[str, Any]]:
    start = {"input_tokens": 6, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 64, "output_tokens": 1}
    blocks = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "Look first."}, {"type": "signature_delta", "signature": "sig"}],
        ),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in ("I ", "read.")]),
        (
            {"type": "tool_use", "id": "c1", "name": "read", "input": {}},
            [{"type": "input_json_delta", "partial_json": piece} for piece in ("", CALLS[0][2][:5], CALLS[0][2][5:])],
        ),
        ({"type": "tool_use", "id": "c2", "name": "list", "input": {}}, []),
    ]
    found: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {
                "id": "r1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "usage": start,
            },
        },
        {"type": "ping"},
    ]
    for index, (block, deltas) in enumerate(blocks):
        found.append({"type": "content_block_start", "index": index, "content_block": block})
        found += ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        found.append({"type": "content_block_stop", "index": index})
    found.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}})
    return [*found, {"type": "message_stop"}]


def gemini() -> list[dict[str, Any]]:
    usage = {"promptTokenCount": 100, "cachedContentTokenCount": 64, "candidatesTokenCount": 6, "thoughtsTokenCount": 3}
    parts: list[list[dict[str, Any]]] = [
        [{"text": "Look first.", "thought": True}],
        [{"text": "I "}],
        [{"text": "read."}],
        [
            {"functionCall": {"id": "c1", "name": "read", "args": {"path": "a.py"}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"id": "c2", "name": "list", "args": {}}},
        ],
    ]
    found: list[dict[str, Any]] = [
        {
            "candidates": [{"content": {"role": "model", "parts": some}, "index": 0}],
            "usageMetadata": {**usage, "candidatesTokenCount": 1},
            "responseId": "r1",
        }
        for some in parts
    ]
    found[-1]["candidates"][0]["finishReason"] = "STOP"
    found[-1]["usageMetadata"] = usage
    return found


EVENTS = {"chat": chat, "responses": responses, "anthropic": anthropic, "gemini": gemini}


def stream(kind: str, values: list[dict[str, Any]], **changes: Any) -> Reply:
    """Events as the provider sends them."""
    named = kind in ("responses", "anthropic")
    return Reply(events(values, named=named, done=kind == "chat" and not changes.get("cut")), kind=SSE, **changes)


def whole(kind: str) -> Reply:
    return stream(kind, EVENTS[kind]())


def error(kind: str, status: int, code: str, message: str, **headers: str) -> Reply:
    """A refusal with a status, in the provider's form."""
    bodies = {
        "anthropic": {"type": "error", "error": {"type": code, "message": message}, "request_id": "q"},
        "gemini": {"error": {"code": status, "message": message, "status": code}},
    }
    plain = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return Reply(json.dumps(bodies.get(kind, plain)), status, headers=headers)


def error_event(kind: str, code: str, message: str) -> dict[str, Any]:
    """An error in the middle of a stream."""
    return {
        "chat": {"error": {"message": message, "type": code, "code": None}},
        "responses": {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 9},
        "anthropic": {"type": "error", "error": {"type": code, "message": message}},
        "gemini": {"error": {"code": 503, "message": message, "status": code}},
    }[kind]
