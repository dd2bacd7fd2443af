"""Epochs: the spans between edits, in which what is sent only grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longturn.conversation.item import Item


@dataclass(frozen=True, slots=True)
class Epoch:
    """number: from 0; seq: number of the entry that began it; reason: for people."""

    number: int
    seq: int
    reason: str


def only_grew(old: Sequence[Item], new: Sequence[Item]) -> bool:
    """Whether `new` is `old` with more at its end, so that no byte that was sent has changed."""
    return len(new) >= len(old) and all(a is b or a == b for a, b in zip(old, new, strict=False))
