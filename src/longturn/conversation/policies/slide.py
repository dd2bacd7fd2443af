"""`slide`: when the window is full, its older half goes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longturn.cache.policies.options import choice
from longturn.conversation.edits.contract import Decision, Edit
from longturn.conversation.edits.slide import Slide
from longturn.conversation.item import Item
from longturn.conversation.policies.steps import fixed_tokens, steps, turn_start
from longturn.conversation.window import Window


@dataclass(frozen=True, slots=True)
class SlideOptions:
    """When it slides, and how far."""

    full: float = choice(1.0, "share of the usable window at which it slides")
    left: float = choice(0.5, "share of the usable window that is left then")


class SlidePolicy:
    """Drops the oldest steps in blocks: one per turn would cost the cache the whole view every time."""

    name = "slide"

    def __init__(self, options: SlideOptions | None = None) -> None:
        self.options = options or SlideOptions()

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        return ()

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        if expected <= self.options.full * window.usable:
            return Decision()
        all_steps = steps(items)
        if len(all_steps) < 2:
            return Decision()
        scale = expected / max(sum(item.tokens for item in items), 1)
        room = self.options.left * window.usable / scale - fixed_tokens(items)
        cut = len(all_steps) - 1
        left = all_steps[cut].tokens
        while cut > 1 and left + all_steps[cut - 1].tokens <= room:
            cut -= 1
            left += all_steps[cut].tokens
        opening = turn_start(all_steps, cut)
        keep = () if opening in (None, cut) else (all_steps[opening].message,)
        return Decision(
            (Slide(all_steps[cut].message, keep),), reason=f"full at {expected:,} of {window.usable:,} usable tokens"
        )
