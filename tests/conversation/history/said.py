"""Things to say, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item
from longturn.conversation.parts import Message, Text
from longturn.ledger import RequestLine, TokenUse


class Drop(Edit, tag="drop-for-test", frozen=True):
    """Drops one message."""

    message: int

    def apply(self, items: Sequence[Item]) -> list[Item]:
        return [item for item in items if item.message != self.message]


def user(text: str) -> Message:
    return Message(f"id-{text}", "user", (Text(text),), time=1.5)


def a_line(name: str, purpose: str = "turn") -> RequestLine:
    use = TokenUse(logical=10, cached={"provider": 4}, computed=6, output=2)
    return RequestLine(name, "elsewhere", "m", 1.0, use, purpose=purpose)
