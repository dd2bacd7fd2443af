"""What `opencode export` writes: one JSON object with a session's messages and their parts.

What the model sees of them follows opencode 1.18 (`session/message-v2.ts`, `session/compaction.ts`): each step of an
assistant message is one call; a finished summary takes the place of what is before it, except for a tail of messages;
pruned tool results are replaced from the time of pruning on. Exports made with --sanitize hold marks instead of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[float, Meta(ge=0)]

INTERRUPTED = "[Tool execution was interrupted]"
SUMMARY_REQUEST = "What did we do so far?"


class Cached(msgspec.Struct):
    """What was read from the provider's cache, and written to it."""

    read: Count = 0
    write: Count = 0


class Tokens(msgspec.Struct):
    """As opencode keeps them: input excludes what was read from or written to the cache, output excludes reasoning."""

    input: Count = 0
    output: Count = 0
    reasoning: Count = 0
    cache: Cached = msgspec.field(default_factory=Cached)

    @property
    def prompt(self) -> int:
        """The whole prompt."""
        return self.input + self.cache.read + self.cache.write


class Times(msgspec.Struct):
    """Milliseconds since 1970."""

    created: Milliseconds = 0.0
    completed: Milliseconds | None = None
    start: Milliseconds | None = None
    end: Milliseconds | None = None
    compacted: Milliseconds | None = None


class Info(msgspec.Struct):
    """What is known of a message besides its parts."""

    id: str
    role: str
    time: Times
    parent: str | None = msgspec.field(default=None, name="parentID")
    model: str | None = msgspec.field(default=None, name="modelID")
    summary: Any = None
    error: dict[str, Any] | None = None
    finish: str | None = None
    tokens: Tokens = msgspec.field(default_factory=Tokens)


class State(msgspec.Struct):
    """How a tool call stands."""

    status: str
    input: Any = None
    output: str = ""
    error: str = ""
    time: Times = msgspec.field(default_factory=Times)
    attachments: list[dict[str, Any]] = []


class ExportedPart(msgspec.Struct):
    """A part of a message, of any type."""

    type: str
    id: str = ""
    text: str = ""
    ignored: bool = False
    synthetic: bool = False
    tool: str = ""
    call: str = msgspec.field(default="", name="callID")
    mime: str = ""
    url: str = ""
    filename: str | None = None
    state: State | None = None
    tokens: Tokens | None = None
    tail_start_id: str | None = None


class ExportedMessage(msgspec.Struct):
    """A message with its parts."""

    info: Info
    parts: list[ExportedPart]

    @property
    def compaction(self) -> ExportedPart | None:
        """The part that asks for a summary, in a user message."""
        return next((part for part in self.parts if part.type == "compaction"), None)

    @property
    def is_summary(self) -> bool:
        """Whether this is an answer that sums up what was before; a user message's `summary` is something else."""
        return self.info.role == "assistant" and self.info.summary is True

    @property
    def is_finished_summary(self) -> bool:
        """Whether it takes the place of what it sums up."""
        return self.is_summary and bool(self.info.finish) and not self.info.error

    @property
    def is_sent(self) -> bool:
        """Whether later calls see it: failed answers they do not, unless the user stopped one that had begun."""
        error = self.info.error
        return error is None or (error.get("name") == "MessageAbortedError" and any(part.text for part in self.parts))

    def steps(self) -> Iterator[tuple[list[ExportedPart], Tokens]]:
        """The calls that made up an answer: what each said, and its token counts."""
        said: list[ExportedPart] = []
        counted = False
        for part in self.parts:
            if part.type == "step-finish":
                yield said, part.tokens or self.info.tokens
                said, counted = [], True
            elif part.type in ("text", "reasoning", "tool"):
                said.append(part)
        if said and not counted:
            yield said, self.info.tokens


class SessionOfExport(msgspec.Struct):
    """What is known of a session."""

    id: str
    title: str = ""
    time: Times = msgspec.field(default_factory=Times)


class Export(msgspec.Struct):
    """A whole file."""

    info: SessionOfExport
    messages: list[ExportedMessage]
