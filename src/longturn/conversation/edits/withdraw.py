"""`Withdraw`: a message that never got an answer is not sent again."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.apply import without_halves
from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item
from longturn.errors import ConfigError


class Withdraw(Edit, tag="withdraw", frozen=True):
    """The message of that number goes."""

    message: int

    def apply(self, items: Sequence[Item]) -> list[Item]:
        left = [item for item in items if item.message != self.message or item.fixed]
        if len(left) == len(items):
            raise ConfigError(f"the view has no message {self.message}: withdraw one that is sent")
        return without_halves(left)
