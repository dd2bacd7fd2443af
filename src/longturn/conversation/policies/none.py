"""`none`: everything is sent, for as long as it fits."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.contract import Decision, Edit
from longturn.conversation.item import Item
from longturn.conversation.window import Window


class NoContextPolicy:
    """Edits nothing; a history beyond the window is the provider's error."""

    name = "none"

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        return ()

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        return Decision()
