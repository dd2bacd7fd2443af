"""Two requests side by side, up to where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from longturn.dialects.segments import LEVELS, Segment
from longturn.explain.exchange import Exchange
from longturn.explain.leaves import Leaf, leaves, written
from longturn.explain.verdict import Divergence

FOUND = 0.7
"""Share of what was probably left in the cache from which on a request counts as a hit."""
EXACTLY = 0.95
"""The same where usage and marks say how much that was."""
ALIKE = 3
"""Segments in a row that have to agree for two requests to have met again."""


@dataclass(frozen=True)
class Pair:
    """An earlier request `a` and a later one `b` of the same conversation."""

    a: Exchange
    b: Exchange

    @cached_property
    def old(self) -> tuple[Segment, ...]:
        """Segments of the earlier request."""
        return self.a.prompt.segments

    @cached_property
    def new(self) -> tuple[Segment, ...]:
        """Segments of the later request."""
        return self.b.prompt.segments

    @cached_property
    def index(self) -> int:
        """Segments that both have in common from the beginning."""
        pairs = zip(self.old, self.new, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if not a.same(b)), min(len(self.old), len(self.new)))

    @property
    def before(self) -> Segment | None:
        """The earlier request's first segment that is not in common."""
        return self.old[self.index] if self.index < len(self.old) else None

    @property
    def after(self) -> Segment | None:
        """The later request's first segment that is not in common."""
        return self.new[self.index] if self.index < len(self.new) else None

    @cached_property
    def grown(self) -> bool:
        """Whether OpenAI's last message of the earlier request has more parts now: its end has moved."""
        if self.before or not self.after or not self.old or self.a.prompt.provider not in ("openai", "openai-chat"):
            return False
        return self.after.level == "messages" and self.after.message == self.old[-1].message

    @property
    def append_only(self) -> bool:
        """Whether the later request begins with all of the earlier one."""
        return self.before is None and not self.grown

    @cached_property
    def changes(self) -> tuple[Leaf, ...]:
        """Differences inside the first pair of segments that differ; empty where they are not of one kind."""
        a, b = self.before, self.after
        if a is None or b is None or (a.level, a.role, a.kind) != (b.level, b.role, b.kind):
            return ()
        return tuple(leaves(a.value, b.value, a.path))

    @cached_property
    def divergence(self) -> Divergence | None:
        """The first difference in content, or None."""
        if self.append_only:
            return None
        if self.changes:
            # `changes` compare two segments, so there is an earlier one.
            name = self.old[self.index].name
            first = self.changes[0]
            return Divergence.between(name, first.path, written(first.before), written(first.after))
        shown = self.before or self.new[self.index]
        old = self.before.text if self.before else ""
        return Divergence.between(shown.name, shown.path, old, self.after.text if self.after else "")

    @property
    def depth(self) -> int:
        """Level of the first difference in content, 0 for tools; past all levels where there is none."""
        if self.append_only:
            return len(LEVELS)
        return min(LEVELS.index(segment.level) for segment in (self.before, self.after) if segment)

    @cached_property
    def removed(self) -> int:
        """Segments of the earlier request that are missing at the divergence, behind which it goes on; else 0."""
        return _skipped(self.old[self.index :], self.new[self.index :])

    @cached_property
    def inserted(self) -> int:
        """Segments of the later request that stand at the divergence, behind which the earlier one goes on; else 0."""
        return _skipped(self.new[self.index :], self.old[self.index :])

    @cached_property
    def last_turn(self) -> bool:
        """Whether both part in their last message: another question over the same prefix, nothing of it rewritten."""
        a, b = self.before, self.after
        if a is None or b is None or not a.level == b.level == "messages":
            return False
        return (a.role, a.message) == (b.role, b.message) and (a.message, b.message) == (
            self.old[-1].message,
            self.new[-1].message,
        )

    @property
    def behind_marks(self) -> bool:
        """Whether they part behind everything that the earlier request had marked."""
        return bool(self.a.prompt.marks) and self.index >= self.a.marked

    @property
    def gap(self) -> float | None:
        """Seconds between both."""
        return None if self.a.time is None or self.b.time is None else self.b.time - self.a.time

    @property
    def hit(self) -> bool | None:
        """Whether the later request's usage shows that it found what the earlier one had left; None: cannot be told."""
        if self.b.use is None or not self.a.left:
            return None
        found = self.b.use.cached_total
        if self.a.use is not None and self.a.prompt.marking == "automatic" and found:
            # How much of the last answer's prompt an automatic cache keeps is its own affair.
            return found >= min(self.a.use.cached_total or self.a.left, FOUND * self.a.left)
        return found >= (FOUND if self.a.use is None else EXACTLY) * self.a.left

    def lost_from(self, segments: int) -> int:
        """Tokens lost when only the first `segments` segments could be reused."""
        if self.b.use is not None and self.a.use is not None:
            # What the later request has not even sent had not to be computed either.
            return min(max(0, self.a.left - self.b.use.cached_total), self.b.use.computed)
        return max(0, self.a.tokens(self.a.marked) - self.a.tokens(segments))

    def first_of(self, level: int) -> int:
        """Index of the earlier request's first segment on that level or below it."""
        return next((i for i, s in enumerate(self.old) if LEVELS.index(s.level) >= level), len(self.old))


def _skipped(longer: Sequence[Segment], shorter: Sequence[Segment]) -> int:
    """How many segments to leave out of `longer` until it agrees with `shorter`, for a few segments; 0: never."""
    if not shorter:
        return 0
    for at in range(1, len(longer)):
        pairs = zip(longer[at : at + ALIKE], shorter, strict=False)
        if all(a.same(b) for a, b in pairs):
            return at
    return 0
