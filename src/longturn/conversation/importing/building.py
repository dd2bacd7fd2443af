"""A conversation from elsewhere as it is put together, entry by entry."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence

from longturn.conversation.edits.compact import Compact
from longturn.conversation.edits.contract import Edit
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.history import Made, Whole
from longturn.conversation.parts import File, Message, Part, Role, Text
from longturn.conversation.view.estimate import Estimate
from longturn.conversation.view.fold import View, fold
from longturn.errors import ConfigError
from longturn.ledger import RequestLine

Keep = Callable[[bytes], str]
"""Puts the bytes of a file into the artifact store and returns their digest."""

TITLE = 80
"""Characters of a title that is made of what was said first."""


class Building:
    """The entries so far. Positions are counts of entries; what is gone back from becomes a branch."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.requests: list[Made] = []
        self.branches: list[Whole] = []
        self._view: View | None = None
        self._folded = 0  # entries that are in the view

    def say(self, id: str, role: Role, parts: Sequence[Part], time: float, model: str | None = None) -> int:
        """Add a message, if it has any parts; its number."""
        if parts:
            self.log.append(Said(len(self.log), Message(id, role, tuple(parts), time, model)))
        return len(self.log) - 1

    def say_more(self, seq: int, parts: Sequence[Part]) -> None:
        """Add parts to a message that is there."""
        said = self.log[seq]
        assert isinstance(said, Said)
        message = said.message
        whole = Message(message.id, message.role, (*message.parts, *parts), message.time, message.model)
        self.log[seq] = Said(seq, whole, said.born)
        if seq < self._folded:
            self._view = None

    @property
    def view(self) -> View:
        """What the next request would send."""
        if self._view is None:
            self._view, self._folded = View(Estimate()), 0
        self._view = fold(self.log[self._folded :], onto=self._view)
        self._folded = len(self.log)
        return self._view

    def edit(self, edits: Sequence[Edit], reason: str) -> bool:
        """Add edits, if they fit the view; False if not."""
        edited = Edited(len(self.log), tuple(edits), reason)
        try:
            self._view = fold([edited], onto=self.view)
        except ConfigError:
            return False
        self.log.append(edited)
        self._folded = len(self.log)
        return True

    def compact(self, text: str, reason: str, until: int | None = None, question: str | None = None) -> bool:
        """Let a summary stand for the messages before number `until`; False if nothing of them was sent."""
        until = len(self.log) if until is None else until
        tokens = Estimate().tokens("summary", len(text.encode()))
        return self.edit([Compact(0, until - 1, text, tokens, question=question)], reason)

    def asked(self, line: RequestLine, seq: int | None = None) -> None:
        """Add the line of the request that gave the message `seq`, or the latest entry."""
        self.requests.append(Made((len(self.log) - 1 if seq is None else seq) + 1, line))

    def go_back(self, position: int) -> None:
        """Leave the entries from `position` on to a branch of their own."""
        left = [branch for branch in self.branches if branch.fork > position]
        self.branches = [branch for branch in self.branches if branch.fork <= position]
        requests = [made for made in self.requests if made.entries > position]
        self.requests = [made for made in self.requests if made.entries <= position]
        self.branches.append(Whole("", self.log[position:], requests, fork=position, branches=left))
        self.log = self.log[:position]
        self._view = None

    def first_words(self) -> str:
        """A title: what a person said first."""
        for entry in self.log:
            if isinstance(entry, Said) and entry.message.role == "user":
                for part in entry.message.parts:
                    if isinstance(part, Text) and not part.synthetic and part.text.strip():
                        return part.text.strip().splitlines()[0][:TITLE]
        return ""


def file_of(name: str, media_type: str, data: str, keep: Keep) -> File | None:
    """A file of its bytes in base64; None where they are none."""
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return File(name, media_type, keep(content), len(content))
