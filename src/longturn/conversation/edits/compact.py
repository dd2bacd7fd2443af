"""`Compact`: a summary is sent instead of what it sums up, which stays in the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longturn.conversation.artifacts.handle import digest_of
from longturn.conversation.edits.apply import without_halves
from longturn.conversation.edits.contract import Edit, NeedsSummary
from longturn.conversation.item import Item, Place
from longturn.errors import ConfigError

QUESTION_TOKENS = 12


class Compact(Edit, tag="compact", frozen=True):
    """`text` stands for the messages `first` to `last` (numbers), which it links to.

    tokens: of the text; keep: messages in the range that are still sent, before it; opening: a user message in the
    range that is sent after it, and opens the turn that the tail continues; question: a user's words put before the
    summary, which then is the assistant's own; without one it is sent as the user's. System text always stays.
    """

    first: int
    last: int
    text: str
    tokens: int
    keep: tuple[int, ...] = ()
    opening: int | None = None
    question: str | None = None

    @classmethod
    def after(cls, need: NeedsSummary, text: str, tokens: int) -> Compact:
        """The edit that `need` asks for, with the summary that a model wrote."""
        return cls(need.first, need.last, text, tokens, need.keep, need.opening, need.question)

    def apply(self, items: Sequence[Item]) -> list[Item]:
        inside = [item for item in items if self._covers(item)]
        if not inside:
            raise ConfigError(f"the view has no messages {self.first} to {self.last}: sum up messages of the view")
        end = max(number for number, item in enumerate(items) if self._covers(item))
        head = [item for item in items[:end] if not self._covers(item)]
        kept = [item for item in inside if item.message in self.keep]
        opening = [item for item in inside if item.message == self.opening]
        return without_halves([*head, *kept, *self._summary(inside[-1].turn), *opening, *items[end + 1 :]])

    def texts(self) -> Mapping[Place, str]:
        said = {(self.last, -1): self.text}
        return said if self.question is None else {(self.last, -2): self.question, **said}

    def _covers(self, item: Item) -> bool:
        return self.first <= item.message <= self.last and not item.fixed

    def _summary(self, turn: int) -> list[Item]:
        role = "user" if self.question is None else "assistant"
        made = [_made(self.last, -1, role, self.text, self.tokens, turn)]
        if self.question is not None:
            made.insert(0, _made(self.last, -2, "user", self.question, QUESTION_TOKENS, turn))
        return made


def _made(message: int, part: int, role: str, text: str, tokens: int, turn: int) -> Item:
    return Item(
        message=message,
        part=part,
        role=role,
        kind="summary" if part == -1 else "text",
        turn=turn,
        tokens=tokens,
        whole_tokens=tokens,
        content=digest_of(text),
        synthetic=True,
    )
