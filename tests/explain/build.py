"""One conversation in all four dialects, so that each fixture of a mechanism exists in each of them.

A conversation is a list of turns: (role, block, ...) with role "user" or "assistant" and blocks made by the functions
below. `request` renders it for a provider.
"""

from __future__ import annotations

import copy
import json
from typing import Any

PROVIDERS = ("openai", "anthropic", "gemini", "openai-chat")
MODELS = {
    "openai": "gpt-5.2",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
    "openai-chat": "gpt-4.1",
}
SYSTEM = "You are a careful agent that works in a repository. " * 120
TOOLS = [
    {
        "name": name,
        "description": f"{verb} a file of the project",
        "schema": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "where"}, "limit": {"type": "integer"}},
            "required": ["path", "limit"],
        },
    }
    for name, verb in (("read", "Reads"), ("write", "Writes"), ("search", "Searches"))
]

Block = dict[str, Any]
Turn = tuple[Any, ...]


def text(words: str) -> Block:
    return {"is": "text", "text": words}


def thought(words: str) -> Block:
    return {"is": "thought", "text": words}


def call(name: str, arguments: Any, key: str = "call_1") -> Block:
    """arguments: an object, or for OpenAI a string as it stands."""
    return {"is": "call", "name": name, "arguments": arguments, "id": key}


def result(words: str, name: str = "read", key: str = "call_1") -> Block:
    return {"is": "result", "text": words, "name": name, "id": key}


def image(data: str = "AAAA") -> Block:
    return {"is": "image", "data": data}


TURNS: list[Turn] = [
    ("user", text("Please look at the parser, it drops the last line of the file.")),
    ("assistant", thought("I should read the file first."), call("read", {"path": "a.py", "limit": 40})),
    ("user", result("def parse(lines):\n    return lines[:-1]\n" * 20)),
    ("assistant", text("The slice at the end drops the last line.")),
    ("user", text("Then mend it, and add a test for it.")),
]
MORE: list[Turn] = [
    ("assistant", text("Done: the slice is gone, and there is a test.")),
    ("user", text("Thank you. Now the same for the writer.")),
]


def request(
    provider: str,
    turns: list[Turn] | None = None,
    /,
    *,
    system: str | list[str] = SYSTEM,
    tools: list[dict[str, Any]] | None = None,
    model: str | None = None,
    mark: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """The body; `mark`: for Anthropic, mark the system prompt and the last block. settings: put into the body."""
    render = {"openai": _responses, "anthropic": _anthropic, "gemini": _gemini, "openai-chat": _chat}[provider]
    turns = TURNS if turns is None else turns
    systems = [system] if isinstance(system, str) else system
    body = render(copy.deepcopy(turns), systems, copy.deepcopy(TOOLS if tools is None else tools))
    body = {"model": model or MODELS[provider], **body, **copy.deepcopy(settings)}
    if provider == "anthropic" and mark:
        body["system"][-1]["cache_control"] = {"type": "ephemeral"}
        body["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return body


def _anthropic(turns: list[Turn], system: list[str], tools: list[dict[str, Any]]) -> dict[str, Any]:
    def block(b: Block) -> Block:
        match b["is"]:
            case "text":
                return {"type": "text", "text": b["text"]}
            case "thought":
                return {"type": "thinking", "thinking": b["text"], "signature": "c2ln"}
            case "call":
                return {"type": "tool_use", "id": b["id"], "name": b["name"], "input": b["arguments"]}
            case "result":
                return {"type": "tool_result", "tool_use_id": b["id"], "content": b["text"]}
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b["data"]}}

    return {
        "tools": [{"name": t["name"], "description": t["description"], "input_schema": t["schema"]} for t in tools],
        "system": [{"type": "text", "text": words} for words in system],
        "messages": [{"role": role, "content": [block(b) for b in blocks]} for role, *blocks in turns],
    }


def _chat(turns: list[Turn], system: list[str], tools: list[dict[str, Any]]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": words} for words in system]
    for role, *blocks in turns:
        if role == "assistant":
            message: dict[str, Any] = {"role": role, "content": None}
            for b in blocks:
                if b["is"] == "text":
                    message["content"] = (message["content"] or "") + b["text"]
                elif b["is"] == "thought":
                    message["reasoning_content"] = b["text"]
                else:
                    function = {"name": b["name"], "arguments": _arguments(b)}
                    message.setdefault("tool_calls", []).append(
                        {"id": b["id"], "type": "function", "function": function}
                    )
            messages.append(message)
            continue
        messages += [
            {"role": "tool", "tool_call_id": b["id"], "content": b["text"]} for b in blocks if b["is"] == "result"
        ]
        parts = [
            {"type": "text", "text": b["text"]}
            if b["is"] == "text"
            else {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b['data']}"}}
            for b in blocks
            if b["is"] != "result"
        ]
        if parts:
            messages.append({"role": "user", "content": parts})
    return {"tools": [{"type": "function", "function": _function(t)} for t in tools], "messages": messages}


def _responses(turns: list[Turn], system: list[str], tools: list[dict[str, Any]]) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "developer", "content": words} for words in system[1:]]
    for role, *blocks in turns:
        parts: list[dict[str, Any]] = []
        for b in blocks:
            match b["is"]:
                case "text":
                    parts.append({"type": "input_text" if role == "user" else "output_text", "text": b["text"]})
                case "image":
                    parts.append({"type": "input_image", "image_url": f"data:image/png;base64,{b['data']}"})
                case "thought":
                    summary = [{"type": "summary_text", "text": b["text"]}]
                    items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "ZW5j"})
                case "call":
                    at = {"call_id": b["id"], "name": b["name"], "arguments": _arguments(b)}
                    items.append({"type": "function_call", **at})
                case "result":
                    items.append({"type": "function_call_output", "call_id": b["id"], "output": b["text"]})
        if parts:
            items.append({"type": "message", "role": role, "content": parts})
    return {
        "tools": [{"type": "function", **_function(t)} for t in tools],
        "instructions": system[0],
        "input": items,
    }


def _gemini(turns: list[Turn], system: list[str], tools: list[dict[str, Any]]) -> dict[str, Any]:
    def part(b: Block) -> Block:
        match b["is"]:
            case "text":
                return {"text": b["text"]}
            case "thought":
                return {"text": b["text"], "thought": True}
            case "call":
                return {"functionCall": {"name": b["name"], "args": b["arguments"]}}
            case "result":
                return {"functionResponse": {"name": b["name"], "response": {"output": b["text"]}}}
        return {"inlineData": {"mimeType": "image/png", "data": b["data"]}}

    return {
        "tools": [{"functionDeclarations": [_function(t) for t in tools]}] if tools else [],
        "systemInstruction": {"parts": [{"text": words} for words in system]},
        "contents": [
            {"role": "model" if role == "assistant" else "user", "parts": [part(b) for b in blocks]}
            for role, *blocks in turns
        ],
    }


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "parameters": tool["schema"]}


def _arguments(block: Block) -> str:
    given = block["arguments"]
    return given if isinstance(given, str) else json.dumps(given)
