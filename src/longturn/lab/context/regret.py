"""Regret: what a policy no longer sent, and the recorded agent then read again or changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from longturn.conversation.item import Item

READS = frozenset({"read", "view", "notebookread", "read_file"})
EDITS = frozenset({"edit", "multiedit", "write", "notebookedit", "edit_file", "write_file"})
ACKNOWLEDGEMENT = 100
"""A result of fewer tokens is no content that anyone would look up again."""
TOKENS_A_LINE = 12
"""Of a file as agents read it, with line numbers: how many lines a result can have had."""


class _Read(NamedTuple):
    """What one read gave of a file: lines `first` up to `stop`."""

    content: str
    first: int
    stop: int
    tokens: int


@dataclass(slots=True)
class Regret:
    """Of one session, in tokens.

    content: results whose very content had been there and was not sent whole any more; file: the part of other reads
    whose lines of that file had been there and were not sent any more; blind: latest reads of files that were edited
    while no read of them was sent whole, each once until the file is read again.
    """

    content: int = 0
    file: int = 0
    blind: int = 0
    _been: set[str] = field(default_factory=set)
    _reads: dict[str, list[_Read]] = field(default_factory=dict)
    _whole: set[str] = field(default_factory=set)
    _blind: set[str] = field(default_factory=set)

    def view(self, items: Iterable[Item]) -> None:
        """The view is this now."""
        self._whole.clear()
        self.sent(items)

    def sent(self, items: Iterable[Item]) -> None:
        """The view got these too."""
        self._whole |= {
            item.content for item in items if item.kind == "result" and item.shape in ("whole", "reference")
        }

    def happened(self, item: Item, lines: tuple[int, int] | None = None) -> None:
        """The recorded agent did this, or was told this; the view is still that before. lines: of a read."""
        reads = self._reads.get(item.resource or "", [])
        if item.kind == "call" and item.resource and _of(item, EDITS) and self._misses(item.resource, reads):
            self.blind += reads[-1].tokens
            self._blind.add(item.resource)
        if item.kind != "result" or item.error or item.whole_tokens < ACKNOWLEDGEMENT:
            return
        read = None
        if item.resource and lines and _of(item, READS):
            first, most = lines
            count = min(most, max(item.whole_tokens // TOKENS_A_LINE, 1))
            read = _Read(item.content, first, first + count, item.whole_tokens)
        if item.content in self._been and item.content not in self._whole:
            self.content += item.whole_tokens
        elif read:
            dropped = {line for old in reads if old.content not in self._whole for line in range(old.first, old.stop)}
            there = {line for old in reads if old.content in self._whole for line in range(old.first, old.stop)}
            again = (dropped - there).intersection(range(read.first, read.stop))
            self.file += read.tokens * len(again) // (read.stop - read.first)
        self._been.add(item.content)
        if item.resource and read:
            self._reads.setdefault(item.resource, []).append(read)
            self._blind.discard(item.resource)

    def _misses(self, file: str, reads: list[_Read]) -> bool:
        """Whether a file was read, nothing of it is sent whole, and that was not counted yet."""
        return bool(reads) and file not in self._blind and not any(read.content in self._whole for read in reads)


def _of(item: Item, tools: frozenset[str]) -> bool:
    return item.tool is not None and item.tool.lower() in tools
