"""`Prune`: old tool results become a placeholder; their calls stay."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longturn.conversation.edits.apply import with_results
from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item, Place

PLACEHOLDER = "[Old tool result content cleared]"
"""What opencode sends, and others: models have seen it often."""
PLACEHOLDER_TOKENS = 16


class Prune(Edit, tag="prune", frozen=True):
    """results: places of the tool results. Those already pruned stay so."""

    results: tuple[Place, ...]

    def apply(self, items: Sequence[Item]) -> list[Item]:
        return with_results(items, self.results, _cleared)


def _cleared(item: Item) -> Item:
    return msgspec.structs.replace(item, shape="placeholder", tokens=PLACEHOLDER_TOKENS, refers_to=None, cut=None)
