"""A prompt as a provider's cache sees it: a chain of items, of which each names all that stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from longturn.conversation.item import Item


@dataclass(slots=True)
class Prompt:
    """One request. items: as sent, in order; nodes[i]: equal for equal items up to and with i; ends[i]: tokens so far;
    head: how many items are the fixed prefix."""

    items: Sequence[Item]
    nodes: list[int]
    ends: list[int]
    head: int

    @property
    def tokens(self) -> int:
        """Of the whole prompt."""
        return self.ends[-1] if self.ends else 0

    def said_until(self) -> list[int]:
        """Places of the last item of each run of what is not the model's own, the newest last."""
        places = []
        for place, item in enumerate(self.items):
            after = self.items[place + 1] if place + 1 < len(self.items) else None
            if item.role != "assistant" and (after is None or after.role == "assistant"):
                places.append(place)
        return places


@dataclass(slots=True)
class Chains:
    """Names prefixes: exactly, by interning, so that no two different ones are ever taken for the same."""

    _names: dict[tuple[int, object], int] = field(default_factory=dict)

    def prompt(self, items: Sequence[Item], head: int, before: Prompt | None) -> Prompt:
        """The prompt of these items. before: an earlier one whose beginning may be the same, to save work."""
        same = 0
        if before is not None:
            for old, new in zip(before.items, items, strict=False):
                if old is not new and _sent(old) != _sent(new):
                    break
                same += 1
        nodes = before.nodes[:same] if before is not None else []
        ends = before.ends[:same] if before is not None else []
        node, end = (nodes[-1], ends[-1]) if same else (-1, 0)
        for item in items[same:]:
            node = self._names.setdefault((node, _sent(item)), len(self._names))
            end += item.tokens
            nodes.append(node)
            ends.append(end)
        return Prompt(tuple(items), nodes, ends, head)


def _sent(item: Item) -> object:
    """What decides on an item's bytes."""
    return item.role, item.kind, item.content, item.shape, item.tokens, item.refers_to
