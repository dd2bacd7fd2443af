"""Recorded agent sessions as calls of a model: what came before each, what it answered, what the provider reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from longturn.conversation.importing.claude_log import Usage
from longturn.conversation.item import Kind
from longturn.errors import TraceError
from longturn.lab.trace import open_trace
from longturn.lab.trace.structure import Entry, Part, Session, Structure

KINDS: dict[str, Kind] = {"text": "text", "thinking": "reasoning", "tool_use": "call", "tool_result": "result"}
LINES = 2000
"""So many a read gives where its call does not say how many."""
NOT_A_MODEL = "<synthetic>"
"""What the recording program names where it wrote an answer itself."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One part as recorded.

    chars: 0 for an image; content: equal where the content is; lines: of a result, from which line on and how many at
    most it was to have; the rest as in `Item`.
    """

    message: int
    part: int
    role: str
    kind: Kind
    turn: int
    chars: int
    content: str
    tool: str | None = None
    call: str | None = None
    resource: str | None = None
    lines: tuple[int, int] | None = None
    synthetic: bool = False
    error: bool = False


@dataclass(slots=True)
class Call:
    """One call of a model.

    time, end: unix seconds when it was sent and when its answer was complete; before: what came since the previous
    answer; answer: its parts; compacted: the recording program compacted just before, and `summary` is what it left;
    usage: as the provider reported it.
    """

    time: float
    model: str
    usage: Usage
    before: tuple[Piece, ...]
    compacted: bool
    summary: tuple[Piece, ...]
    end: float = 0.0
    answer: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One session, its calls in order."""

    name: str
    calls: tuple[Call, ...]


def read_sessions(
    path: Path, *, skip_bad: bool = False, progress: Callable[[int, int], None] | None = None
) -> tuple[list[Recorded], list[str]]:
    """The sessions of a structure file that have calls, and the notes of the reading.

    progress: called with bytes read and bytes in all. Raises TraceError for another format or a malformed file.
    """
    trace = open_trace(path, skip_bad=skip_bad)
    if not isinstance(trace, Structure):
        raise TraceError(
            f"{path} does not hold coding-agent sessions as structure (`session` and `entries` a line): "
            "context policies are replayed on such files only."
        )
    sessions = []
    for _, session in trace.records(msgspec.json.Decoder(Session).decode):
        if calls := _calls(session):
            sessions.append(Recorded(session.session, tuple(calls)))
        if progress:
            progress(trace.file.bytes_read, trace.file.size)
    if not sessions:
        raise TraceError(f"{path} holds no call of a model. Give a file with sessions that were answered.")
    return sessions, trace.notes[len(trace.notes) - bool(trace.skipped) :]


def _calls(session: Session) -> list[Call]:
    reading = _Reading(session.session)
    for entry in session.entries:
        reading.follow(entry)
    return reading.calls


class _Reading:
    """A session while its entries go by."""

    def __init__(self, session: str) -> None:
        self.calls: list[Call] = []
        self._session = session
        self._request: str | None = None  # of the call whose answer is coming in
        self._message = 0
        self._turn = -1
        self._waiting: list[Piece] = []
        self._summary: list[Piece] = []
        self._compacted = False
        self._arrival = 0.0
        self._tools: dict[str, Part] = {}

    def follow(self, entry: Entry) -> None:
        if entry.event == "compact_boundary":
            self._compacted, self._request, self._summary = True, None, []
        elif entry.role == "assistant" and entry.model != NOT_A_MODEL:
            self._answer(entry)
        elif entry.role != "system":
            self._add(entry)

    def _answer(self, entry: Entry) -> None:
        if entry.request != self._request:
            self._message += 1
            self.calls.append(
                Call(
                    time=max(self._arrival or entry.t.timestamp(), self.calls[-1].time if self.calls else 0.0),
                    model=entry.model or "",
                    usage=entry.usage or Usage(),
                    before=tuple(self._waiting),
                    compacted=self._compacted,
                    summary=tuple(self._summary),
                )
            )
            self._request, self._waiting, self._summary, self._compacted = entry.request, [], [], False
        call = self.calls[-1]
        # Results that came while the answer was still being written have messages of their own, after it.
        message = call.answer[0].message if call.answer else self._message
        call.answer += self._pieces(entry, message, len(call.answer))
        call.end = max(call.end, call.time, entry.t.timestamp())

    def _add(self, entry: Entry) -> None:
        self._arrival = entry.t.timestamp()
        self._message += 1
        asked = any(part.kind == "text" for part in entry.parts) and entry.role == "user"
        if asked and not (entry.meta or entry.summary):
            self._turn += 1
        pieces = self._pieces(entry, self._message, 0)
        if entry.summary:
            self._summary += pieces
        else:
            self._waiting += pieces

    def _pieces(self, entry: Entry, message: int, first: int) -> list[Piece]:
        pieces = []
        for place, part in enumerate(entry.parts, start=first):
            kind = KINDS.get(part.kind, "file")
            if kind == "call" and part.call:
                self._tools[part.call] = part
            asked = self._tools.get(part.call or "") if kind == "result" else part
            pieces.append(
                Piece(
                    message=message,
                    part=place,
                    role="tool" if kind == "result" else entry.role,
                    kind=kind,
                    turn=max(self._turn, 0),
                    chars=part.chars if kind != "file" else 0,
                    content=part.id or f"{self._session} {message} {place}",
                    tool=asked.tool if asked else None,
                    call=part.call,
                    resource=asked.file if asked else None,
                    lines=_lines(asked) if asked and kind == "result" else None,
                    synthetic=entry.meta or entry.summary or entry.model == NOT_A_MODEL,
                    error=part.error,
                )
            )
        return pieces


def _lines(asked: Part) -> tuple[int, int]:
    return max(int(asked.offset or 1), 1), max(int(asked.limit or LINES), 1)
