"""Views in a few words, without text: as policies see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from longturn.conversation.edits import Compact, Decision, applied
from longturn.conversation.item import Item


@dataclass
class Shape:
    """Items as a conversation of known sizes goes. Every result has a content of its own unless one is given."""

    items: list[Item] = field(default_factory=list)
    seq: int = 0
    turn: int = -1
    first_of_turn: int = 0

    def add(self, role: str, kind: str, tokens: int, part: int = 0, **more: object) -> Item:
        self.seq += part == 0
        content = str(more.pop("content", f"{self.seq}.{part}"))
        item = Item(self.seq - 1, part, role, kind, max(self.turn, 0), tokens, tokens, content, **more)  # type: ignore[arg-type]
        self.items.append(item)
        return item

    def system(self, tokens: int) -> Shape:
        self.add("system", "system", tokens)
        return self

    def user(self, tokens: int = 10) -> int:
        self.turn += 1
        self.first_of_turn = self.seq
        return self.add("user", "text", tokens).message

    def answer(self, tokens: int = 10) -> int:
        return self.add("assistant", "text", tokens).message

    def step(self, *results: int, tool: str = "bash", call: int = 0, **more: object) -> int:
        """An answer with a call per result, and the results; the number of the answer."""
        first = self.seq
        for number in range(len(results)):
            self.add("assistant", "call", call, part=number, tool=tool, call=f"{first}.{number}")
        for number, tokens in enumerate(results):
            self.add("tool", "result", tokens, tool=tool, call=f"{first}.{number}", **more)
        return first

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)

    def edit(self, decision: Decision, summary: int = 500) -> None:
        """Do what a policy has decided, with a summary of so many tokens where it asks for one."""
        self.items = applied(self.items, decision.edits)
        if decision.summary is not None:
            self.items = applied(self.items, [Compact.after(decision.summary, "what was done", summary)])


def paired(items: Sequence[Item]) -> bool:
    """Whether every call is followed by its result, and every result has its call before it."""
    waiting: list[str | None] = []
    for item in items:
        if item.kind == "call":
            waiting.append(item.call)
        elif item.kind == "result":
            if item.call not in waiting:
                return False
            waiting.remove(item.call)
        elif waiting:
            return False
    return not waiting
