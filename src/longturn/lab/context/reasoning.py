"""Which reasoning a provider still has in a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longturn.conversation.item import Item


def as_sent(items: Sequence[Item], model: str) -> Sequence[Item]:
    """Items without the reasoning that the model's provider strips: of earlier turns, on Anthropic's older models."""
    if not strips_reasoning(model):
        return items
    turn = max((item.turn for item in items), default=0)
    return [item for item in items if item.kind != "reasoning" or item.turn == turn]


def strips_reasoning(model: str) -> bool:
    """Anthropic before Opus 4.5 and Sonnet 4.6, and every Haiku, leave out the reasoning of earlier turns."""
    return re.search(r"haiku|sonnet-4-[05]|sonnet-4-2|opus-4-[012]|claude-3", model) is not None
