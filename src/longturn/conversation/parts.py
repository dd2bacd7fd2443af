"""What a conversation is made of: messages of typed parts. Immutable, and as plain JSON in the history.

A part of a kind that is not known here is kept as it came, shown to people, and never sent.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class Base(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, gc=False):
    """One part of a message."""


class Text(Base, tag="text", frozen=True):
    """Words. synthetic: written by the program, not by the one whose role it has."""

    text: str
    synthetic: bool = False


class Reasoning(Base, tag="reasoning", frozen=True):
    """A model's reasoning. data: the provider's own block, to be given back to it unchanged."""

    text: str
    data: Any = None


class ToolCall(Base, tag="tool_call", frozen=True):
    """A model's call. arguments: JSON text exactly as the model wrote it."""

    call: str
    tool: str
    arguments: str


class ToolResult(Base, tag="tool_result", frozen=True):
    """What a call gave. resource: what was read (a path, a URL), where the tool says so; error: it failed."""

    call: str
    text: str
    resource: str | None = None
    error: bool = False


class File(Base, tag="file", frozen=True):
    """A file that was attached, by the digest of its bytes in the artifact store."""

    name: str
    media_type: str
    digest: str
    size: int


class Summary(Base, tag="summary", frozen=True):
    """A compaction's answer. first, last: sequence numbers of the messages it stands for."""

    text: str
    first: int
    last: int


class Tools(Base, tag="tools", frozen=True):
    """The tools that may be called from the next epoch on, all of them, as JSON in OpenAI's form."""

    definitions: tuple[dict[str, Any], ...]


class Signal(Base, tag="hint", frozen=True):
    """A hint to the cache, of `ledger` and `cache`'s kinds, about the conversation up to here. Never sent as text."""

    hint: str
    seconds: float = 300.0
    level: int = 0


class Unknown(Base, tag="unknown", frozen=True):
    """A part of another version or program. data: its JSON as it came."""

    data: Any


Part = Text | Reasoning | ToolCall | ToolResult | File | Summary | Tools | Signal | Unknown


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message. id: unique; time: unix seconds; request: the model call that wrote it; model: who answered."""

    id: str
    role: Role
    parts: tuple[Part, ...]
    time: float = 0.0
    model: str | None = None
    request: str | None = None
