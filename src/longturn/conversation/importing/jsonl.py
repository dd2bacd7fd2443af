"""Our own files of sessions: one JSON object a line, first the session, then its entries, then its requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from longturn.conversation.entries import Entry
from longturn.conversation.history import Made, Session, Undo, Whole
from longturn.conversation.history.coding import decode_entry, encode_entry
from longturn.conversation.history.requests import decode_request, encode_request
from longturn.conversation.importing.files import malformed, numbered
from longturn.errors import ImportFailed

VERSION = 1


class Head(msgspec.Struct, omit_defaults=True):
    """The first line. longturn: the version of the format."""

    longturn: int
    id: str
    title: str = ""
    model: str | None = None
    policy: str | None = None
    created: float = 0.0


class _Line(msgspec.Struct, omit_defaults=True):
    """All others: an entry, or a request with the number of entries that there were when it was answered."""

    seq: int | None = None
    kind: str = ""
    entry: msgspec.Raw = msgspec.Raw(b"null")
    entries: int = 0
    request: msgspec.Raw = msgspec.Raw(b"null")


_HEAD = msgspec.json.Decoder(Head)
_LINE = msgspec.json.Decoder(_Line)
_ENCODER = msgspec.json.Encoder()


def write(session: Session) -> Iterator[bytes]:
    """The lines of a session; a branch is written whole, with what it shares."""
    info = session.info
    yield _ENCODER.encode(Head(VERSION, info.id, info.title, info.model, info.policy, info.created)) + b"\n"
    for record in session.log():
        kind, body = encode_entry(record)
        yield _ENCODER.encode(_Line(seq=record.seq, kind=kind, entry=msgspec.Raw(body.encode()))) + b"\n"
    for request in session.requests():
        body = encode_request(request.line, request.sent)
        yield _ENCODER.encode(_Line(entries=request.entries, request=msgspec.Raw(body.encode()))) + b"\n"


def read(path: Path, data: bytes, skip_bad: bool) -> list[Whole]:
    """The sessions of one or several such files. Raises ImportFailed for a malformed line, unless it may be skipped."""
    heads: list[Head] = []
    logs: list[list[Entry | Undo]] = []
    requests: list[list[Made]] = []
    for number, line in numbered(data):
        try:
            if line.startswith(b'{"longturn":'):
                heads.append(_HEAD.decode(line))
                if (version := heads[-1].longturn) > VERSION:
                    raise ImportFailed(f"{path} has version {version} of this format: upgrade Longturn to read it")
                logs.append([])
                requests.append([])
                continue
            found = _LINE.decode(line)
            if found.seq is None:
                request = decode_request(number, "", found.entries, found.request)
                requests[-1].append(Made(found.entries, request.line, request.sent))
            elif logs[-1] and found.seq <= logs[-1][-1].seq:
                raise ValueError(f"entry {found.seq} comes after entry {logs[-1][-1].seq}")
            else:
                logs[-1].append(decode_entry(found.seq, found.kind, found.entry))
        except (ValueError, RecursionError, IndexError) as error:
            if not (skip_bad and heads):
                raise malformed(path, f"line {number}", error) from None
    return [
        Whole(head.title, log, made, head.model, head.policy, head.created, head.id)
        for head, log, made in zip(heads, logs, requests, strict=True)
    ]
