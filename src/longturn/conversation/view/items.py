"""From a message of the history to the items that are sent of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from longturn.conversation.artifacts.handle import digest_of, encode
from longturn.conversation.item import Item, Kind
from longturn.conversation.parts import (
    File,
    Message,
    Part,
    Reasoning,
    Signal,
    Summary,
    Text,
    ToolCall,
    ToolResult,
    Tools,
    Unknown,
)
from longturn.conversation.view.estimate import Estimate

INTERRUPTED = "[Tool execution was interrupted]"
"""What is sent as the result of a call that has none. Fixed: it is sent again with every request."""
_TOOLS = msgspec.json.Encoder(order="sorted")


def items_of(seq: int, message: Message, turn: int, calls: Mapping[str, Item], estimate: Estimate) -> list[Item]:
    """The items of message `seq` of user turn `turn`.

    calls: calls before it that wait for a result, by id. A result of no such call is not sent: no provider takes one.
    Neither are hints, parts of unknown kinds, and texts of nothing.
    """
    items: list[Item] = []
    for number, part in enumerate(message.parts):
        if isinstance(part, Signal | Unknown) or (isinstance(part, Text) and not part.text):
            continue
        call = calls.get(part.call) if isinstance(part, ToolResult) else None
        if isinstance(part, ToolResult) and call is None:
            continue
        kind, text = _content(part)
        if kind == "text" and message.role == "system":
            kind = "system"
        data = encode(text)
        tokens = estimate.tokens(kind, len(data))
        items.append(
            Item(
                message=seq,
                part=number,
                role=message.role,
                kind=kind,
                turn=turn,
                tokens=tokens,
                whole_tokens=tokens,
                content=part.digest if isinstance(part, File) else digest_of(data),
                tool=part.tool if isinstance(part, ToolCall) else call.tool if call else None,
                call=part.call if isinstance(part, ToolCall | ToolResult) else None,
                resource=part.resource if isinstance(part, ToolResult) else None,
                synthetic=isinstance(part, Text) and part.synthetic,
                error=isinstance(part, ToolResult) and part.error,
            )
        )
    return items


def interrupted(call: Item, estimate: Estimate) -> Item:
    """What stands for the result of `call`, which never came."""
    tokens = estimate.tokens("result", len(INTERRUPTED))
    return Item(
        message=call.message,
        part=-10 - call.part,
        role="tool",
        kind="result",
        turn=call.turn,
        tokens=tokens,
        whole_tokens=tokens,
        content=digest_of(INTERRUPTED),
        tool=call.tool,
        call=call.call,
        synthetic=True,
        error=True,
    )


def tools_text(part: Tools) -> str:
    """The definitions as they are sent: sorted by name, so that the order of discovery never shows."""
    return _TOOLS.encode(sorted(part.definitions, key=tool_name)).decode()


def tool_name(definition: Mapping[str, object]) -> str:
    """The name of a tool in OpenAI's form, with or without `function` around it."""
    inner = definition.get("function", definition)
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def _content(part: Part) -> tuple[Kind, str]:
    match part:
        case Text(text=text):
            return "text", text
        case Reasoning(text=text, data=data):
            return "reasoning", text if data is None else text + msgspec.json.encode(data).decode()
        case ToolCall(tool=tool, arguments=arguments):
            return "call", tool + arguments
        case ToolResult(text=text):
            return "result", text
        case File(name=name):
            return "file", name
        case Summary(text=text):
            return "summary", text
        case Tools():
            return "tools", tools_text(part)
        case _:
            raise TypeError(f"a {type(part).__name__} is no item")
