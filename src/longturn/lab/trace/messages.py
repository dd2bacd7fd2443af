"""Messages in OpenAI's form, as chat logs and benchmarks keep them."""

from __future__ import annotations

from typing import Any

import msgspec

from longturn.lab.trace.form import Blocks
from longturn.lab.trace.text import IMAGE_TOKENS, Texts, opaque


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Function


class Message(msgspec.Struct):
    """One message; fields that are not for the model are left out."""

    role: str
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    reasoning_content: str | None = None


def said(message: Message, texts: Texts) -> Blocks:
    """All of a message but its role: reasoning, content, tool calls."""
    parts = [texts.blocks(message.reasoning_content or "")]
    content = message.content or ""
    parts += [_part(part, texts) for part in ([content] if isinstance(content, str) else content)]
    calls = [call.function for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(message.function_call)
    parts += [texts.blocks(f"\n{call.name}{call.arguments}") for call in calls]
    return Blocks.join(*parts)


def whole(message: Message, texts: Texts) -> Blocks:
    """A message as it stands in a prompt."""
    return texts.message(f"{message.role} {message.name}" if message.name else message.role, said(message, texts))


def _part(part: str | dict[str, Any], texts: Texts) -> Blocks:
    if isinstance(part, str):
        return texts.blocks(part)
    if isinstance(text := part.get("text"), str):
        return texts.blocks(text)
    return opaque(msgspec.json.encode(part).decode(), IMAGE_TOKENS)
