"""Which parts of a view are dead weight: sent with every request, and unlikely to be wanted again."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.prune import PLACEHOLDER_TOKENS
from longturn.conversation.item import Item, Place
from longturn.conversation.policies.worth import Dead

SUPERSEDED, SPENT, READ = 0.0, 0.02, 0.4
"""How likely a part is wanted again: a read with a later one of the same resource, and reasoning of earlier turns; the
output of commands, and what was given to tools; any other read. Of the reads in recorded sessions of coding agents 41
to 56% are re-reads."""
LEAST = 4 * PLACEHOLDER_TOKENS
"""Tokens of the smallest part that is worth a placeholder."""
_WRITING = ("edit", "write", "patch")


def dead_parts(items: Sequence[Item], recent: float, horizon: int) -> dict[Place, Dead]:
    """Results, arguments of calls and reasoning that may be dropped, by place, with what that would save.

    recent: tokens at the end of the view of which nothing may; horizon: most requests that are counted as carried.
    A part is carried in vain from when it was no longer recent, or was superseded, whichever was later. What others
    refer to must stay: if it went, the first of them would be sent whole instead.
    """
    referred_to = {item.refers_to for item in items if item.shape == "reference"}
    turn = items[-1].turn if items else 0
    found: dict[Place, Dead] = {}
    later: dict[tuple[str | None, str | None], tuple[int, int]] = {}
    answers = vain = 0
    last = None
    for item in reversed(items):
        if item.role == "assistant" and item.message != last:
            last = item.message
            answers += 1
            vain += recent <= 0
        recent -= item.tokens
        since, size = later.get((item.resource, item.tool), (0, 0))
        may_go = recent <= 0 and item.tokens > LEAST and item.at not in referred_to
        if may_go and (wanted := _wanted(item, turn, size)) is not None:
            carried = min(vain, answers - since) if wanted == SUPERSEDED else vain
            left = 0 if item.kind == "reasoning" else PLACEHOLDER_TOKENS
            found[item.at] = Dead(item.tokens - left, min(carried, horizon), wanted)
        if is_whole_read(item) and item.whole_tokens >= size:
            later[item.resource, item.tool] = (answers, item.whole_tokens)
    return found


def is_whole_read(item: Item) -> bool:
    """Whether it is the whole result of a call that had a resource, and no error."""
    return item.kind == "result" and item.resource is not None and item.shape == "whole" and not item.error


def writes(item: Item) -> bool:
    """Whether its tool changes what it names, by the tool's name: such results tell little that is asked for again."""
    return any(word in (item.tool or "").lower() for word in _WRITING)


def _wanted(item: Item, turn: int, later: int) -> float | None:
    """How likely it is wanted again; None for what must stay. later: tokens of the largest later read of its resource
    by the same tool: one of less than half its size may be another range of it, or say that nothing has changed."""
    if item.kind == "reasoning":
        # Providers need that of the present turn, to go on with its calls.
        return SUPERSEDED if item.turn < turn else None
    if item.kind == "call":
        return SPENT if item.shape == "whole" else None
    if item.kind != "result" or item.shape == "placeholder":
        return None
    if item.resource is not None and 2 * later >= item.whole_tokens:
        return SUPERSEDED
    return READ if item.resource is not None and not writes(item) else SPENT
