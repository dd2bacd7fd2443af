"""`Externalize`: a large result is sent as head and tail, and kept whole as an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from longturn.conversation.edits.apply import with_changed
from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item
from longturn.errors import ConfigError

BYTES_PER_TOKEN = 3
"""Of tool results, on the safe side: what is cut to n tokens has at most n."""
NOTE_TOKENS = 60
"""What says how much is left out, and how to get it."""


class Externalize(Edit, tag="externalize", frozen=True):
    """The result at message, part.

    artifact: digest of its text, under which all of it can be read; head, tail: characters that are still sent.
    """

    at_birth: ClassVar[bool] = True

    message: int
    part: int
    artifact: str
    head: int
    tail: int

    @classmethod
    def within(cls, item: Item, tokens: int) -> Externalize:
        """A preview of `item` that has about `tokens` tokens: two thirds from its head, one third from its tail."""
        characters = max(tokens - NOTE_TOKENS, 0) * BYTES_PER_TOKEN
        head = characters * 2 // 3
        return cls(item.message, item.part, item.content, head, characters - head)

    @property
    def tokens(self) -> int:
        """Of the preview, as estimated."""
        return NOTE_TOKENS + (self.head + self.tail) // BYTES_PER_TOKEN

    def apply(self, items: Sequence[Item]) -> list[Item]:
        return with_changed(items, [(self.message, self.part)], ("result",), self._preview)

    def _preview(self, item: Item) -> Item:
        if item.content != self.artifact:
            raise ConfigError(
                f"part {item.at} is not the text of artifact {self.artifact[:12]}: externalize what is there"
            )
        if item.whole_tokens <= self.tokens:
            raise ConfigError(f"part {item.at} is no larger than its preview would be: send it whole")
        return msgspec.structs.replace(
            item, shape="preview", tokens=self.tokens, cut=(self.head, self.tail), refers_to=None
        )
