"""The calls that ask for a summary: what each policy sends, for it is not the same and not equally well cached."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.item import Item

INSTRUCTION_TOKENS = 600
"""What asks for a summary and its sections, and the system prompt of a call that has its own."""
CUT_CHARACTERS = 2000
"""opencode cuts tool results to so many characters before they are summarised."""


def request(policy: str, needed: NeedsSummary | None, items: Sequence[Item], head: int, per_token: float) -> list[Item]:
    """What is sent to have part of a view summarised.

    opencode sends a text of its own, without system prompt and tools, in which results are cut; codex sends the view
    without the tools; all others continue the view. head: how many items are the fixed prefix; per_token: characters
    of a result; needed: None for all of the view.
    """
    if policy == "opencode" and needed is not None:
        asked = [item for item in items[head:] if item.message <= needed.last]
        cut = round(CUT_CHARACTERS / per_token)
        tokens = sum(min(item.tokens, cut) if item.kind == "result" else item.tokens for item in asked)
        return [_written(f"summary of {items[head].at} to {needed.last}", tokens + INSTRUCTION_TOKENS)]
    kept = [item for item in items if item.kind != "tools"] if policy == "codex" else list(items)
    return [*kept, _written("summary instruction", INSTRUCTION_TOKENS)]


def _written(content: str, tokens: int) -> Item:
    return Item(
        message=0,
        part=9,
        role="user",
        kind="text",
        turn=0,
        tokens=tokens,
        whole_tokens=tokens,
        content=content,
        synthetic=True,
    )
