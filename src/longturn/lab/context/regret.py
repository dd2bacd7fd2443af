"""Regret: what a policy no longer sent, and the recorded agent then read again or changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from longturn.conversation.item import Item

READS = frozenset({"read", "view", "notebookread", "read_file"})
EDITS = frozenset({"edit", "multiedit", "write", "notebookedit", "edit_file", "write_file"})
ACKNOWLEDGEMENT = 100
"""A result of fewer tokens is no content that anyone would look up again."""


@dataclass(slots=True)
class Regret:
    """Of one session, in tokens.

    content: results whose very content had been there and was not sent whole any more; file: reads of a file of which
    an earlier read had been there and nothing was sent whole any more; blind: latest reads of files that were edited
    while nothing of them was sent whole.
    """

    content: int = 0
    file: int = 0
    blind: int = 0
    _been: set[str] = field(default_factory=set)
    _files: dict[str, int] = field(default_factory=dict)
    _whole: set[str] = field(default_factory=set)
    _whole_files: set[str] = field(default_factory=set)

    def view(self, items: Iterable[Item]) -> None:
        """The view is this now."""
        self._whole.clear()
        self._whole_files.clear()
        self.sent(items)

    def sent(self, items: Iterable[Item]) -> None:
        """The view got these too."""
        for item in items:
            if item.kind == "result" and item.shape in ("whole", "reference"):
                self._whole.add(item.content)
                if item.resource and _of(item, READS):
                    self._whole_files.add(item.resource)

    def happened(self, item: Item) -> None:
        """The recorded agent did this, or was told this; the view is still that before."""
        if item.kind == "call" and item.resource and _of(item, EDITS) and item.resource not in self._whole_files:
            self.blind += self._files.get(item.resource, 0)
        if item.kind != "result" or item.error or item.whole_tokens < ACKNOWLEDGEMENT:
            return
        read = item.resource if _of(item, READS) else None
        if item.content in self._been and item.content not in self._whole:
            self.content += item.whole_tokens
        elif read in self._files and read not in self._whole_files:
            self.file += item.whole_tokens
        self._been.add(item.content)
        if read:
            self._files[read] = item.whole_tokens


def _of(item: Item, tools: frozenset[str]) -> bool:
    return item.tool is not None and item.tool.lower() in tools
