"""Entries and requests as the JSON that rows hold, and back; what a newer version wrote is kept as it came."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union

import msgspec
import xxhash

from longturn.conversation.edits.contract import Edit
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.parts import Message, Part, Unknown
from longturn.errors import HistoryError

EntryKind = Literal["said", "edited", "undone"]


@dataclass(frozen=True, slots=True)
class Undo:
    """What a branch keeps of an undo. target: the number of the edits, or of an earlier undo, that it takes back."""

    seq: int
    target: int


class _Said(msgspec.Struct, omit_defaults=True, gc=False):
    message: msgspec.Raw
    born: list[msgspec.Raw] = []


class _Edited(msgspec.Struct):
    edits: list[msgspec.Raw]
    reason: str


class _Undone(msgspec.Struct):
    target: int


class _RawParts(msgspec.Struct):
    parts: list[msgspec.Raw]


_MESSAGE = msgspec.json.Decoder(Message)
_SAID = msgspec.json.Decoder(_Said)
_EDITED = msgspec.json.Decoder(_Edited)
_UNDONE = msgspec.json.Decoder(_Undone)
_PART: msgspec.json.Decoder[Part] = msgspec.json.Decoder(Part)
_PARTS = msgspec.json.Decoder(_RawParts)
_ANY = msgspec.json.Decoder()


def checksum(body: str | bytes) -> str:
    """Of a row's body. Raises UnicodeEncodeError for what is no text."""
    return xxhash.xxh3_64_hexdigest(body.encode() if isinstance(body, str) else body)


def encode_message(message: Message) -> bytes:
    """A message as JSON, parts of unknown kinds as they came. Raises HistoryError for what JSON cannot hold."""
    try:
        if not any(isinstance(part, Unknown) for part in message.parts):
            return msgspec.json.encode(message)
        parts = [_raw(part.data) if isinstance(part, Unknown) else part for part in message.parts]
        return msgspec.json.encode({**msgspec.structs.asdict(message), "parts": parts})
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise HistoryError(f"message {message.id} cannot be kept: {error}. Give text that is valid Unicode") from None


def decode_message(raw: bytes | msgspec.Raw) -> Message:
    """The inverse of `encode_message`. Raises ValueError for what is no message."""
    try:
        return _MESSAGE.decode(raw)
    except msgspec.ValidationError:
        # A part of a kind or form that this version does not know must not hide the others.
        pieces = [_part(piece) for piece in _PARTS.decode(raw).parts]
        message = msgspec.convert({**_ANY.decode(raw), "parts": []}, Message)
        return msgspec.structs.replace(message, parts=tuple(pieces))


def encode_entry(entry: Entry | Undo) -> tuple[EntryKind, str]:
    """Kind and body of an entry's row."""
    match entry:
        case Said():
            said = _Said(msgspec.Raw(encode_message(entry.message)), [_raw_edit(edit) for edit in entry.born])
            return "said", msgspec.json.encode(said).decode()
        case Edited():
            edited = _Edited([_raw_edit(edit) for edit in entry.edits], entry.reason)
            return "edited", msgspec.json.encode(edited).decode()
        case Undo():
            return "undone", msgspec.json.encode(_Undone(entry.target)).decode()


def decode_entry(seq: int, kind: str, body: str | bytes | msgspec.Raw) -> Entry | Undo:
    """The inverse of `encode_entry`. Raises ValueError for what is no entry."""
    if kind == "said":
        said = _SAID.decode(body)
        return Said(seq, decode_message(said.message), tuple(map(_edit, said.born)))
    if kind == "edited":
        edited = _EDITED.decode(body)
        return Edited(seq, tuple(map(_edit, edited.edits)), edited.reason)
    if kind == "undone":
        return Undo(seq, _UNDONE.decode(body).target)
    raise ValueError(f"entries of kind {kind!r} are not known here")


def _part(raw: msgspec.Raw) -> Part:
    try:
        return _PART.decode(raw)
    except msgspec.ValidationError:
        return Unknown(_ANY.decode(raw))


def _raw(data: Any) -> msgspec.Raw:
    """An unknown part's own JSON, wrapped where that would be taken for a part of ours."""
    raw = msgspec.Raw(msgspec.json.encode(data))
    return raw if _part(raw) == Unknown(data) else msgspec.Raw(msgspec.json.encode(Unknown(data)))


def _raw_edit(edit: Edit) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(edit))


def _edit(raw: msgspec.Raw) -> Edit:
    return _edits(tuple(_kinds(Edit))).decode(raw)


def _kinds(parent: type[Edit]) -> list[type[Edit]]:
    """All edits there are, found through their class so that other packages can bring their own."""
    return [kind for child in parent.__subclasses__() for kind in (child, *_kinds(child))]


@cache
def _edits(kinds: tuple[type[Edit], ...]) -> msgspec.json.Decoder[Edit]:
    return msgspec.json.Decoder(Union[kinds] if kinds else Edit)  # noqa: UP007  (the members are only known here)
