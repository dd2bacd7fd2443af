"""`Slide`: the oldest messages are no longer sent."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.apply import without_halves
from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item
from longturn.errors import ConfigError


class Slide(Edit, tag="slide", frozen=True):
    """Messages before number `before` go, but for `keep` among them; system text and tools stay."""

    before: int
    keep: tuple[int, ...] = ()

    def apply(self, items: Sequence[Item]) -> list[Item]:
        if not any(item.message >= self.before and not item.fixed for item in items):
            raise ConfigError(f"nothing would be left before message {self.before}: slide to a message of the view")
        return without_halves(
            [item for item in items if item.fixed or item.message >= self.before or item.message in self.keep]
        )
