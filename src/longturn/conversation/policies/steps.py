"""Where a view may be cut: a step is a user message, or an answer with the results of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from longturn.conversation.item import Item


@dataclass(frozen=True, slots=True)
class Step:
    """Items `start` up to `stop` of a view, none of them system text or tools.

    message: number of the first one's message; last: highest number among them; role: of the first; user: whether a
    user said it, not a program; summary: whether it is a summary or the question put before one; tokens: of all of
    them, as they are sent.
    """

    message: int
    last: int
    role: str
    user: bool
    summary: bool
    start: int
    stop: int
    tokens: int


def steps(items: Sequence[Item]) -> list[Step]:
    """All steps in the order in which they are sent."""
    starts = [
        number
        for number, item in enumerate(items)
        if not item.fixed and item.kind != "result" and (number == 0 or _begins(items[number - 1], item))
    ]
    return [_step(items, start, stop) for start, stop in pairwise([*starts, len(items)])]


def fixed_tokens(items: Sequence[Item]) -> int:
    """Of system text and tools, which no edit can drop."""
    return sum(item.tokens for item in items if item.fixed)


def turn_start(all_steps: Sequence[Step], number: int) -> int | None:
    """Which step before step `number`, or that itself, is the latest that a user said; None if none is."""
    return next((n for n in range(number, -1, -1) if all_steps[n].user), None)


def _begins(before: Item, item: Item) -> bool:
    return before.fixed or before.message != item.message or before.role != item.role or (before.part < 0 <= item.part)


def _step(items: Sequence[Item], start: int, stop: int) -> Step:
    part = [item for item in items[start:stop] if not item.fixed]
    first = part[0]
    return Step(
        message=first.message,
        last=max(item.message for item in part),
        role=first.role,
        user=first.role == "user" and any(not item.synthetic for item in part),
        summary=first.part < 0,
        start=start,
        stop=stop,
        tokens=sum(item.tokens for item in part),
    )
