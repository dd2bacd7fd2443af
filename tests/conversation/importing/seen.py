"""What a model would be sent of an imported conversation, in a few characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longturn.conversation.entries import Entry
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render


def seen(log: Sequence[Entry]) -> list[str]:
    """The view: one "role: content" a message, calls as "tool(arguments)"."""
    return [f"{message['role']}: {_content(message)}" for message in render(fold(log)).messages]


def _content(message: dict[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    content = message["content"]
    words = content if isinstance(content, str) else "|".join(part.get("text", "<file>") for part in content)
    thoughts = "".join(f"({thought['text']})" for thought in message.get("reasoning", ()))
    return thoughts + words + "".join(f" {call['name']}{call['arguments']}" for call in calls)
