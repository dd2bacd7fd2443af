"""`opencode`: what the coding agent opencode does, version 1.18.33 (packages/opencode/src/session: overflow.ts,
compaction.ts, message-v2.ts).

Overflow is tested after the fact: on the size that the provider reported for the latest request with its answer. A
compaction sends, from then on, "What did we do so far?", the summary as the assistant's answer, a verbatim tail, and
what is newer. The tail has whole user turns from the end while they fit a quarter of the usable window (at least 2,000
and at most 15,000 tokens); the first that does not fit is cut at a message after its user message; a tail that would
begin at the first message is none at all. Pruning of old tool results is off unless chosen.

Differences: sizes are those of the items, not a quarter of the characters of JSON; pruning is decided when the next
user message is there, not at the end of the loop before, and treats a compaction's tail like what is newer; the turn
"Continue if you have next steps", and the replay of a user message whose request overflowed, are the loop's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longturn.cache.policies.options import choice, tokens
from longturn.conversation.edits.contract import Decision, Edit, NeedsSummary
from longturn.conversation.edits.prune import Prune
from longturn.conversation.item import Item
from longturn.conversation.policies.steps import Step, steps
from longturn.conversation.window import Window

OUTPUT_MOST = 32_000
RESERVED_MOST = 20_000
TAIL_LEAST, TAIL_MOST = 2_000, 15_000
PRUNE_PROTECT, PRUNE_MINIMUM = 40_000, 20_000
PROTECTED_TURNS = 2
PROTECTED_TOOL = "skill"
QUESTION = "What did we do so far?"


@dataclass(frozen=True, slots=True)
class OpencodeOptions:
    """The keys of `compaction` in its configuration, with their defaults."""

    auto: bool = choice(True, "whether it compacts by itself")
    prune: bool = choice(False, "whether old tool results are cleared")
    reserved: int | None = tokens(None, "kept free below a model's input limit; without such a limit it has no effect")
    tail_turns: int | None = choice(None, "user turns that the verbatim tail has at most")
    preserve_recent_tokens: int | None = tokens(None, "size of the verbatim tail")


def usable(window: Window, reserved: int | None = None) -> int:
    """Tokens at which a request with its answer overflows."""
    most = min(window.output, OUTPUT_MOST) or OUTPUT_MOST
    if window.input is not None:
        return window.input - (min(RESERVED_MOST, most) if reserved is None else reserved)
    return window.context - most


def overflows(used: int, window: Window, options: OpencodeOptions) -> bool:
    """Whether a finished request that `used` so many tokens asks for a compaction."""
    return options.auto and window.context > 0 and used >= usable(window, options.reserved)


def percentage(used: int, window: Window) -> int:
    """What its side bar shows for a latest answer that `used` so many tokens: of the whole window, rounded half up."""
    return int(100 * used / window.context + 0.5)


def tail_budget(window: Window, options: OpencodeOptions) -> int:
    """Tokens of the verbatim tail."""
    if options.preserve_recent_tokens is not None:
        return options.preserve_recent_tokens
    return min(TAIL_MOST, max(TAIL_LEAST, usable(window, options.reserved) // 4))


def tail_start(all_steps: Sequence[Step], budget: int, turns: int | None = None) -> int | None:
    """Which of the steps, none a summary, the verbatim tail begins with; None: there is no tail."""
    starts = [number for number, step in enumerate(all_steps) if step.role == "user"]
    if turns is not None:
        starts = starts[len(starts) - min(turns, len(starts)) :]
    start, stop = None, len(all_steps)
    for begin in reversed(starts):
        size = sum(step.tokens for step in all_steps[begin:stop])
        if size > budget:
            for inside in range(begin + 1, stop):
                if 0 < sum(step.tokens for step in all_steps[inside:stop]) <= budget:
                    start = inside
                    break
            break
        budget -= size
        start = stop = begin
    return start or None


def prunable(items: Sequence[Item]) -> list[Item]:
    """Results to clear, newest first: empty unless they have more than `PRUNE_MINIMUM` tokens together."""
    turns = seen = 0
    found: list[Item] = []
    last_user = None
    for item in reversed(items):
        if item.role == "user" and item.kind != "result" and item.message != last_user:
            last_user, turns = item.message, turns + 1
        if turns < PROTECTED_TURNS:
            continue
        if item.kind == "summary":
            break
        if item.kind != "result" or item.error or item.tool == PROTECTED_TOOL:
            continue
        if item.shape == "placeholder":
            break
        seen += item.tokens
        if seen > PRUNE_PROTECT:
            found.append(item)
    return found if sum(item.tokens for item in found) > PRUNE_MINIMUM else []


class OpencodePolicy:
    """Compacts when it is too late, and forgets most."""

    name = "opencode"

    def __init__(self, options: OpencodeOptions | None = None) -> None:
        self.options = options or OpencodeOptions()

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        return ()

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        if (
            reported is not None
            and overflows(reported, window, self.options)
            and (need := self._summary(items, window))
        ):
            return Decision(summary=need, reason=f"{reported:,} tokens reach {usable(window, self.options.reserved):,}")
        if self.options.prune and items and items[-1].role == "user":
            newest = items[-1].message
            if old := prunable([item for item in items if item.message != newest]):
                places = tuple(sorted(item.at for item in old))
                return Decision((Prune(places),), reason=f"{len(places)} old tool results are cleared")
        return Decision()

    def _summary(self, items: Sequence[Item], window: Window) -> NeedsSummary | None:
        """The earlier summary and its question are summed up with the rest, and never part of the tail."""
        all_steps = steps(items)
        said = [step for step in all_steps if not step.summary]
        if not said:
            return None
        start = tail_start(said, tail_budget(window, self.options), self.options.tail_turns)
        head = said if start is None else said[:start]
        last = max(step.last for step in head)
        return NeedsSummary(
            first=min(step.message for step in all_steps),
            last=last,
            tail=last + 1 if start is None else said[start].message,
            reason="overflow",
            question=QUESTION,
        )
