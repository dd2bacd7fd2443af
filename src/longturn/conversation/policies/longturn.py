"""`longturn`: what is large or was there before is made small when it is born, what was sent is only changed when that
pays for the cache it breaks, and a summary is the last resort.

1. At birth: a result that repeats one still sent whole becomes a reference to it; a large one becomes the preview of an
   artifact, which the model can read and search. No byte that was sent changes.
2. What is unlikely to be wanted again (`dead`) is dropped in batches, whenever a batch pays (`worth`): after it was
   carried in vain for as much as that costs, or while the cache is cold anyway.
3. When the window is nearly full it is dropped without having paid, if that makes enough room.
4. If not: a summary, with a tail and the user's own words kept verbatim, and the newest reads (`kept`).

Nothing is done that would not help: when system text and tools alone fill the window, or too little would be dropped.
The shares were chosen on recorded sessions of coding agents, for a window of 200,000 tokens (`longturn lab context`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longturn.cache.policies.options import choice, tokens
from longturn.conversation.edits.contract import Decision, Edit
from longturn.conversation.edits.dedupe import REFERENCE_TOKENS, Dedupe
from longturn.conversation.edits.externalize import Externalize
from longturn.conversation.edits.prune import Prune
from longturn.conversation.item import Item, Place
from longturn.conversation.policies.dead import READ, dead_parts
from longturn.conversation.policies.kept import summary_before_tail
from longturn.conversation.policies.steps import fixed_tokens
from longturn.conversation.policies.worth import Dead, Prices, saving
from longturn.conversation.window import Window

GETTERS = frozenset({"artifact_read", "artifact_search", "recall"})
"""Tools that bring back what was made small: their results are not made small again."""

SUMMARY = 4_000
"""Tokens that a summary may have: so many less are kept beside it."""


@dataclass(frozen=True, slots=True)
class LongturnOptions:
    """Shares are of what the usable window leaves beside system text and tools; of results, of all of it."""

    result: float = choice(1 / 24, "share that a result may have and still be sent whole")
    read: float = choice(1 / 8, "share that a result with a resource (a file, a URL) may have")
    recent: float = choice(0.05, "share of the newest tokens, of which nothing is dropped")
    batch: float = choice(0.07, "share that must be dropped at once, unless the cache is cold")
    full: float = choice(0.94, "share at which room must be made")
    target: float = choice(0.5, "share that must be reached then, or a summary is asked for")
    kept: float = choice(0.35, "share that is kept verbatim when the rest is summed up")
    words: float = choice(0.15, "share of what is kept that the user's own words may have, beside the tail")
    reads: float = choice(0.5, "share of what is kept that the newest reads may have, beside the tail")
    horizon: int = choice(30, "most requests that are expected still to come")
    cache_read: float = choice(0.1, "price of a cached token, an uncached one being 1")
    cache_write: float = choice(1.25, "price of a token that is written to the cache")
    least: int = tokens(2_000, "no share is taken to be fewer tokens", least=200)


class LongturnPolicy:
    """See the module."""

    name = "longturn"

    def __init__(self, options: LongturnOptions | None = None) -> None:
        self.options = options or LongturnOptions()
        self._prices = Prices(self.options.cache_read, self.options.cache_write)

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        edits: list[Edit] = []
        results = [item for item in new if item.kind == "result" and item.tokens > 2 * REFERENCE_TOKENS]
        if not results:
            return edits
        whole = {item.content: item.at for item in items if item.kind == "result" and item.shape == "whole"}
        for item in results:
            limit = self._share(self.options.read if item.resource else self.options.result, window.usable)
            if item.content in whole:
                edits.append(Dedupe(item.message, item.part, whole[item.content]))
            elif item.tokens > limit and item.tool not in GETTERS:
                edits.append(Externalize.within(item, int(limit) // 2))
        return edits

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        # Items have estimated sizes; what is expected has been corrected by what was reported.
        fixed = fixed_tokens(items)
        size = sum(item.tokens for item in items) - fixed
        room = window.usable * (fixed + size) / max(expected, 1) - fixed
        if room <= 0:
            return Decision()
        target = self.options.target * room
        dead = dead_parts(items, self._share(self.options.recent, room), self.options.horizon)
        dead = {at: part for at, part in dead.items() if part.wanted < READ}
        batch = self._batch(size, dead, room, cold)
        if size <= self.options.full * room or (batch and size - _tokens(batch[0]) <= target):
            return batch[1] if batch else Decision()
        if size - _tokens(dead) <= target:
            return Decision((Prune(tuple(sorted(dead))),), reason=f"nearly full: {len(dead)} old parts go")
        kept = self._share(self.options.kept, room - SUMMARY)
        need = summary_before_tail(
            items,
            tail=(1 - self.options.words - self.options.reads) * kept,
            words=self.options.words * kept,
            reads=self.options.reads * kept,
            least=self.options.batch * room,
            reason="nearly full, and dropping old parts is not enough",
        )
        if need is not None:
            return Decision(summary=need, reason=need.reason)
        return batch[1] if batch else Decision()

    def _share(self, share: float, room: float) -> float:
        return max(share * room, self.options.least)

    def _batch(
        self, size: int, dead: dict[Place, Dead], room: float, cold: bool
    ) -> tuple[dict[Place, Dead], Decision] | None:
        """What pays for the cache it breaks, and the decision to drop it."""
        chosen = {at: part for at, part in dead.items() if part.gain(self._prices, cold) > 0}
        dropped = _tokens(chosen)
        left = size - dropped
        least = self.options.least if cold else self.options.batch * room
        if dropped < least or saving(chosen.values(), left, self._prices, cold) <= 0:
            return None
        pays = "cost nothing while the cache is cold" if cold else f"pay for writing {left:,} again"
        reason = f"{len(chosen)} old parts go: {dropped:,} tokens less with every request {pays}"
        return chosen, Decision((Prune(tuple(sorted(chosen))),), reason=reason)


def _tokens(dead: dict[Place, Dead]) -> int:
    return sum(part.tokens for part in dead.values())
