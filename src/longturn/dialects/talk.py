"""A conversation as chat templates take it: what every dialect's request comes down to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Talk:
    """What is written into a prompt.

    messages: each with `role` (system, user, assistant, tool) and `content` (a string), perhaps `tool_calls`
    ({"id", "type": "function", "function": {"name", "arguments": object or text}}) and `tool_call_id`.
    tools: {"type": "function", "function": {"name", "description", "parameters"}}, or None where there are none.
    options: further variables of the template.
    begun: the beginning of the answer, which the model goes on with.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    begun: str = ""
