"""`Dedupe`: a result that says what an earlier one said becomes a reference to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from longturn.conversation.edits.apply import with_changed
from longturn.conversation.edits.contract import Edit
from longturn.conversation.item import Item, Place

REFERENCE_TOKENS = 48


class Dedupe(Edit, tag="dedupe", frozen=True):
    """The result at message, part refers to the one at `to`, which has equal content, is before it and sent whole.

    Where that one is no longer sent, the first reference to it is whole again.
    """

    at_birth: ClassVar[bool] = True

    message: int
    part: int
    to: Place

    def apply(self, items: Sequence[Item]) -> list[Item]:
        return with_changed(items, [(self.message, self.part)], ("result",), self._reference)

    def _reference(self, item: Item) -> Item:
        return msgspec.structs.replace(item, shape="reference", tokens=REFERENCE_TOKENS, refers_to=self.to, cut=None)
