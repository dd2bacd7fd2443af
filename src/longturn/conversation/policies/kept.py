"""What is kept verbatim when the rest is summed up."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.item import Item
from longturn.conversation.policies.dead import is_whole_read, writes
from longturn.conversation.policies.steps import Step, steps, turn_start


def summary_before_tail(
    items: Sequence[Item], tail: float, words: float, reads: float, least: float, reason: str
) -> NeedsSummary | None:
    """Sum up all but a tail of at most `tail` tokens; None where that would drop fewer than `least` tokens.

    The tail begins at a user message: where it begins inside a turn, that turn's message is put in front of it. Before
    the summary stay the newest of the user's own words, of at most `words` tokens, and the newest reads of resources
    that were not read again, of at most `reads` tokens.
    """
    all_steps = steps(items)
    cut = _tail(all_steps, tail)
    head = all_steps[:cut]
    if not head:
        return None
    last = max(step.last for step in head)
    start = turn_start(all_steps, cut)
    opening = all_steps[start].message if start is not None and all_steps[start].message <= last else None
    said = [step for step in head if step.user and step.message != opening]
    keep = _words(said, words) | _reads(items, all_steps, cut, reads)
    dropped = sum(item.tokens for item in items[: head[-1].stop] if _goes(item, last, keep, opening))
    if dropped < least:
        return None
    return NeedsSummary(
        first=min(step.message for step in head),
        last=last,
        tail=next((step.message for step in all_steps[cut:] if step.message > last), last + 1),
        reason=f"{reason}: {dropped:,} tokens are summed up",
        keep=tuple(sorted(keep)),
        opening=opening,
    )


def _goes(item: Item, last: int, keep: set[int], opening: int | None) -> bool:
    return not item.fixed and item.message <= last and item.message not in keep and item.message != opening


def _tail(all_steps: Sequence[Step], room: float) -> int:
    """Which step the tail begins with: a user message where one leaves it at least half of `room`. The newest step is
    always part of it."""
    cut = max(len(all_steps) - 1, 0)
    left = all_steps[cut].tokens if all_steps else 0
    at_user = None
    while cut > 0 and left + all_steps[cut - 1].tokens <= room:
        cut -= 1
        left += all_steps[cut].tokens
        if all_steps[cut].user and left >= room / 2:
            at_user = cut
    return cut if at_user is None else at_user


def _words(said: Sequence[Step], room: float) -> set[int]:
    kept: set[int] = set()
    for step in sorted(said, key=lambda step: step.message, reverse=True):
        room -= step.tokens
        if room < 0:
            break
        kept.add(step.message)
    return kept


def _reads(items: Sequence[Item], all_steps: Sequence[Step], cut: int, room: float) -> set[int]:
    """Messages of answers before step `cut` and of their results. A read of less than half the size of a later one of
    the same resource, or the same, is none of them."""
    later: dict[str | None, int] = {}
    kept: set[int] = set()
    for number in range(len(all_steps) - 1, -1, -1):
        step = items[all_steps[number].start : all_steps[number].stop]
        for item in reversed(step):
            if not is_whole_read(item) or writes(item):
                continue
            size = later.get(item.resource, 0)
            messages = {all_steps[number].message, item.message} - kept
            tokens = sum(other.tokens for other in step if other.message in messages)
            if number < cut and 2 * size < item.whole_tokens and tokens <= room:
                room -= tokens
                kept |= messages
            later[item.resource] = max(size, item.whole_tokens)
    return kept
