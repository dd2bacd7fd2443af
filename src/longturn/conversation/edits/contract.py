"""What an edit is, and who decides on them.

A view is folded from the history: messages are appended in order, and edits change what is sent of them. An edit at
birth changes an item before it was ever sent, and breaks nothing. Any other edit changes bytes that were sent, begins a
new epoch, and costs the provider's cache what lies behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec

from longturn.conversation.item import Item, Place
from longturn.conversation.window import Window


class Edit(msgspec.Struct, frozen=True, tag_field="edit", omit_defaults=True):
    """One change of the view, as data that the history keeps. Subclasses say what changes and live in a file each."""

    at_birth: ClassVar[bool] = False
    """Whether it may be made of items that were not sent yet, together with them, so that no epoch begins."""

    def apply(self, items: Sequence[Item]) -> list[Item]:
        """The items after this edit. Pure; raises ConfigError if it names what is not there.

        At birth `items` are those of the new message alone. Use `edits.apply.applied` for several edits together: it
        also keeps references whole.
        """
        raise NotImplementedError

    def texts(self) -> Mapping[Place, str]:
        """The text of items that this edit adds and no message of the history has."""
        return {}


class NeedsSummary(msgspec.Struct, frozen=True):
    """A decision that a model must help with: summarise the messages `first` to `last` (sequence numbers), keep what
    begins with message `tail` verbatim. `edits.compact.Compact.after` makes the edit of it.

    tail: last + 1 or later; beyond the view's end where nothing is kept; keep: messages in the range that stay, before
    the summary; opening: a user message in the range that stays, between the summary and a tail that continues its
    turn; question: a user's words to put before the summary, which is then the assistant's.
    """

    first: int
    last: int
    tail: int
    reason: str
    keep: tuple[int, ...] = ()
    opening: int | None = None
    question: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """Edits to make now, all in one new epoch, and perhaps a summary to ask for first. reason: for people."""

    edits: tuple[Edit, ...] = ()
    summary: NeedsSummary | None = None
    reason: str = ""


class ContextPolicy(Protocol):
    """Which edits are made, and when. Pure: the same items and figures give the same decisions, in every process."""

    name: str

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        """Edits at birth of `new` items, which follow the view's `items` and were not sent yet."""

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        """What must change before the next request.

        items: the view as it would be sent; expected: its size in tokens, estimated ahead; reported: size of the latest
        request with its answer, as the provider reported it, None before the first request of an epoch; cold: the
        provider's cache has lost the view (its entries have expired, another model is asked), so that a change of it
        breaks nothing.
        """
