"""Coding-agent sessions as structure only: who said how much when, and opaque ids instead of content.

One JSON object a line: `session` and its `entries`, which are those of a Claude Code session log with text replaced by
its length in characters and an id that is equal where the text was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from longturn.conversation.importing.claude_log import Usage
from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import Blocks, TraceRequest
from longturn.lab.trace.heads import head_note
from longturn.lab.trace.text import IMAGE_TOKENS, opaque
from longturn.lab.trace.transcript import Call, Transcript, finished

CHARACTERS_PER_TOKEN = 2.8
"""Of tool results, code and prose in coding sessions, against the provider's own counts."""


class Part(msgspec.Struct):
    """One part: its kind, length in characters and opaque ids. call: what a result answers; file, offset, limit: what a
    call names, and from which line on how many are read."""

    kind: str
    chars: Annotated[int, Meta(ge=0, le=2**31)] = 0
    id: str | None = None
    tool: str | None = None
    call: str | None = None
    file: str | None = None
    offset: float | None = None
    limit: float | None = None
    error: bool = False


class Entry(msgspec.Struct, rename={"meta": "isMeta", "summary": "isCompactSummary"}):
    """One entry. meta: written by the program in the user's name; summary: what a compaction left."""

    t: datetime
    role: Literal["user", "assistant", "system"]
    parts: list[Part] = []
    request: str | None = None
    model: str | None = None
    usage: Usage | None = None
    event: str | None = None
    meta: bool = False
    summary: bool = False

    def __post_init__(self) -> None:
        if self.role == "assistant" and self.request is None:
            raise ValueError("an assistant entry names the `request` that it answers")


class Session(msgspec.Struct):
    """One line of the file."""

    session: str
    entries: list[Entry]


class Structure(FileTrace):
    """A structure-only file. Sessions are merged by their recorded times; all are in memory while gone through."""

    def __init__(self, file: TraceFile, *, skip_bad: bool = False, shared_heads: bool = False) -> None:
        notes = [
            "Sessions are merged by their recorded times.",
            f"{CHARACTERS_PER_TOKEN} characters count as one token, an image as {IMAGE_TOKENS}.",
            head_note(shared_heads),
        ]
        super().__init__(file, unit=1, notes=notes, skip_bad=skip_bad)
        self._shared_heads = shared_heads
        self._decode = msgspec.json.Decoder(Session).decode

    def __iter__(self) -> Iterator[TraceRequest]:
        requests: list[TraceRequest] = []
        for number, session in self.records(self._decode):
            requests += self._requests(session, f"line {number}")
        requests.sort(key=lambda request: request.time)
        start = requests[0].time if requests else 0.0
        for request in requests:
            yield replace(request, time=request.time - start)

    def _requests(self, session: Session, where: str) -> Iterator[TraceRequest]:
        calls: deque[Call] = deque()
        transcript = Transcript(session.session, calls, shared_head=self._shared_heads)
        for place, entry in enumerate(session.entries, start=1):
            name = f"{session.session} {place}"
            said = Blocks.join(*(_content(part, f"{name} {i}") for i, part in enumerate(entry.parts)))
            if entry.request is not None:
                usage = entry.usage or Usage()
                transcript.answer(
                    entry.request,
                    said,
                    label=f"{where}, entry {place}",
                    time=entry.t.timestamp(),
                    reported_prompt=usage.prompt,
                    reported_output=usage.output_tokens,
                )
            elif entry.event == "compact_boundary":
                transcript.forget()
            elif entry.role == "user":
                transcript.add(said, entry.t.timestamp())
        transcript.close()
        return finished(calls)


def _content(part: Part, place: str) -> Blocks:
    """The part's tokens. Without an id it is like no other."""
    if part.kind == "image":
        return opaque(part.id or place, IMAGE_TOKENS)
    return opaque(part.id or place, round(part.chars / CHARACTERS_PER_TOKEN))
