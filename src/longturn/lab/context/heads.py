"""What stands before the first message of a session: unseen in the recordings, but in every prompt."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.conversation.item import Item, Kind
from longturn.lab.context.rates import Fitted, head_of
from longturn.lab.context.sessions import Recorded

OLDER = 1.5
"""A head longer than so many typical ones holds older history, of a session that was resumed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed prefix of a session, and what an older history adds to it. Lengths in tokens."""

    fixed: tuple[Item, ...]
    older: tuple[Item, ...]

    @property
    def tokens(self) -> int:
        """Of the fixed prefix."""
        return sum(item.tokens for item in self.fixed)


def head(session: Recorded, fitted: Fitted) -> Head:
    """The head as a session begins. As long as its first reported prompt tells, else as is typical."""
    model = session.calls[0].model
    unseen = head_of(session, fitted.rates) if session.calls[0].usage.prompt else fitted.head
    resumed = fitted.head > 0 and unseen > OLDER * fitted.head
    own = fitted.head if resumed else unseen
    older = _item(3, "text", "assistant", f"older history of {session.name}", unseen - own)
    return Head(fixed_items(session.name, model, own, fitted), (older,) if resumed else ())


def fixed_items(name: str, model: str, tokens: int, fitted: Fitted) -> tuple[Item, ...]:
    """A fixed prefix of so many tokens: what others share, what sessions of the model share, and its own rest."""
    shared = min(fitted.shared, tokens)
    static = min(fitted.static, tokens)
    parts = (
        _item(0, "tools", "system", f"shared head of {model}", shared),
        _item(1, "system", "system", f"static head of {model}", static - shared),
        _item(2, "system", "system", f"head of {name}", tokens - static),
    )
    return tuple(item for item in parts if item.tokens)


def _item(part: int, kind: Kind, role: str, content: str, tokens: int) -> Item:
    return Item(
        message=0,
        part=part,
        role=role,
        kind=kind,
        turn=0,
        tokens=tokens,
        whole_tokens=tokens,
        content=content,
        synthetic=True,
    )
