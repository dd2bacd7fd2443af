"""The history of one branch, as a sequence: what was said, and which edits were made of what is sent."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.conversation.edits.contract import Edit
from longturn.conversation.parts import Message


@dataclass(frozen=True, slots=True)
class Said:
    """A message. seq: its number in the branch, from 0, shared with edits; born: edits at birth of its parts."""

    seq: int
    message: Message
    born: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Edited:
    """Edits that began a new epoch. reason: for people; undone: taken back by a later undo, so without effect."""

    seq: int
    edits: tuple[Edit, ...]
    reason: str
    undone: bool = False


Entry = Said | Edited
