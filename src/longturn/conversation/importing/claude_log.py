"""The entries of Claude Code's session logs, as far as they have to do with what a model sees.

The format is not documented by its maker; this follows the logs themselves. What matters here: several assistant
entries with one message id are one call; `compact_boundary` starts the context anew from the summary that follows; side
chains are sub-agents with a context of their own; a user message whose parent is an older entry goes back to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Content = str | list[str | dict[str, Any]]


class Usage(msgspec.Struct):
    """Token counts as Anthropic reports them: the three of the prompt exclude each other."""

    input_tokens: Count = 0
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    output_tokens: Count = 0

    @property
    def prompt(self) -> int:
        """The whole prompt."""
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)


class LoggedMessage(msgspec.Struct):
    """A message of the API, or a part of one."""

    content: Content
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None


class _Kind(msgspec.Struct):
    type: str


class LogEntry(msgspec.Struct, rename="camel"):
    """An entry that has to do with what the model sees."""

    type: Literal["user", "assistant", "system"]
    uuid: str = ""
    parent_uuid: str | None = None
    session_id: str = ""
    agent_id: str | None = None
    is_sidechain: bool = False
    is_api_error_message: bool = False
    is_compact_summary: bool = False
    is_meta: bool = False
    timestamp: datetime | None = None
    subtype: str | None = None
    request_id: str | None = None
    message: LoggedMessage | None = None

    def __post_init__(self) -> None:
        if self.type != "system" and (self.message is None or self.timestamp is None):
            raise ValueError(f"an entry of type {self.type} has a `message` and a `timestamp`")


_KIND = msgspec.json.Decoder(_Kind)
_ENTRY = msgspec.json.Decoder(LogEntry)


def decode_line(line: bytes) -> LogEntry | None:
    """An entry, or None for one of the many kinds that the model never sees. Raises ValueError for a malformed one."""
    return _ENTRY.decode(line) if _KIND.decode(line).type in ("user", "assistant", "system") else None


def is_result(content: Content) -> bool:
    """Whether a user's entry is in truth what tools gave."""
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def chain_name(entry: LogEntry, roots: dict[str, str]) -> str:
    """The session, with the sub-agent if it is one's entry.

    roots: of entries in side chains that have no agent id, the first entry of the chain; this one is added.
    """
    session = entry.session_id or "session"
    if not entry.is_sidechain:
        return session
    if entry.agent_id:
        return f"{session}/{entry.agent_id}"
    root = roots.get(entry.parent_uuid or "", entry.uuid)
    roots[entry.uuid] = root
    return f"{session}/{root}"
