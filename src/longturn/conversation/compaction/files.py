"""The files of a conversation, from what tools really did with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from longturn.conversation.parts import File, Message, ToolCall, ToolResult

_PATHS = ("file_path", "filePath", "path", "file", "filename", "notebook_path", "target_file", "uri", "url")
"""Arguments by which tools name what they work on."""


@dataclass(slots=True)
class Touched:
    """A file or URL. last: number of the latest message that concerns it; tools: how often each was used on it."""

    name: str
    last: int
    tools: Counter[str] = field(default_factory=Counter)


def touched(messages: Mapping[int, Message], last: int) -> list[Touched]:
    """What tools worked on, and what was attached, up to message `last`; the latest first."""
    found: dict[str, Touched] = {}
    calls: dict[str, ToolCall] = {}
    for seq, message in messages.items():
        if seq > last:
            continue
        for name, tool in _names(message, calls):
            entry = found.setdefault(name, Touched(name, seq))
            entry.last = max(entry.last, seq)
            entry.tools[tool] += 1
    return sorted(found.values(), key=lambda entry: (-entry.last, entry.name))


def _names(message: Message, calls: dict[str, ToolCall]) -> Iterator[tuple[str, str]]:
    """What each part concerns, and the tool that was used on it. calls: all so far, by id; added to."""
    for part in message.parts:
        if isinstance(part, File):
            yield part.name, "attached"
        elif isinstance(part, ToolCall):
            calls[part.call] = part
            if name := _argument(part.arguments):
                yield name, part.tool
        elif isinstance(part, ToolResult) and part.resource:
            made = calls.get(part.call)
            if made is None or _argument(made.arguments) is None:
                yield part.resource, made.tool if made else "read"


def _argument(arguments: str) -> str | None:
    try:
        given: Any = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return None
    if not isinstance(given, dict):
        return None
    named = (given.get(key) for key in _PATHS)
    return next((name for name in named if isinstance(name, str) and name and "\n" not in name), None)
