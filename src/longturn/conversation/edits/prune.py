"""`Prune`: old tool results become a placeholder, the arguments of old calls too, and old reasoning goes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longturn.conversation.edits.apply import with_changed
from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item, Place

PLACEHOLDER = "[Old tool result content cleared]"
"""What opencode sends, and others: models have seen it often."""
ARGUMENTS = '{"cleared":"[Old tool call arguments cleared]"}'
"""Arguments have to be an object."""
PLACEHOLDER_TOKENS = 16


class Prune(Edit, tag="prune", frozen=True):
    """places: of tool results, calls or reasoning. Those already pruned stay so. A call stays a call, with its id."""

    places: tuple[Place, ...]

    def apply(self, items: Sequence[Item]) -> list[Item]:
        return with_changed(items, self.places, ("result", "call", "reasoning"), _cleared)


def _cleared(item: Item) -> Item | None:
    if item.kind == "reasoning":
        return None
    return msgspec.structs.replace(item, shape="placeholder", tokens=PLACEHOLDER_TOKENS, refers_to=None, cut=None)
