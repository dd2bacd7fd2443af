"""`Replay`: ranges of what is no longer sent are brought back, at the end, where they break nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item
from longturn.errors import ConfigError


class Extract(msgspec.Struct, frozen=True):
    """Characters `start` up to `stop` of a text or result in the history: message, part; tokens: about how many."""

    message: int
    part: int
    start: int
    stop: int
    tokens: int


class Replay(Edit, tag="replay", frozen=True):
    """Extracts, as user messages that the program wrote."""

    extracts: tuple[Extract, ...]

    def apply(self, items: Sequence[Item]) -> list[Item]:
        if items and items[-1].kind == "call":
            raise ConfigError("a call waits for its result: bring back what was said after that")
        turn = items[-1].turn if items else 0
        return [*items, *(_item(extract, turn) for extract in self.extracts)]


def _item(extract: Extract, turn: int) -> Item:
    if extract.part < 0 or not 0 <= extract.start < extract.stop:
        raise ConfigError(f"{extract} is no range of what was said: give a part of the history, and start below stop")
    return Item(
        message=extract.message,
        part=extract.part,
        role="user",
        kind="text",
        turn=turn,
        tokens=extract.tokens,
        whole_tokens=extract.tokens,
        content=f"{extract.message}:{extract.part}:{extract.start}:{extract.stop}",
        shape="extract",
        cut=(extract.start, extract.stop),
        synthetic=True,
    )
