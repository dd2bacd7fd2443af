"""A prefix tree over block ids that knows of every block when it was touched last."""

from __future__ import annotations

from longturn.lab.trace.form import Ids

Run = tuple[int, int]
"""Neighbouring blocks of one path that were last touched together: (the number of that touch, how many)."""


class PrefixTree:
    """Paths are touched one after the other; a block is its id and all ids before it.

    Every touch marks a whole path from the root, so along any path the marks only get older. A node keeps a mark per
    stretch and not per block, and a touch replaces all marks that it covers by one: following a conversation costs a
    few steps per touch and one comparison of its ids, however many turns it has.

    touches: how many so far; blocks: distinct blocks seen.
    """

    __slots__ = ("_roots", "blocks", "touches")

    def __init__(self) -> None:
        self._roots: dict[str, dict[int, _Node]] = {}
        self.touches = 0
        self.blocks = 0

    def touch(self, ids: Ids, salt: str = "") -> list[Run]:
        """Touch a path, int64 [n]. Gives what was known of it, as runs from the root down.

        The touches in the runs descend: a deeper block was never touched later than a block above it. The blocks that
        the runs do not cover are new.
        """
        now, self.touches = self.touches, self.touches + 1
        known: list[Run] = []
        siblings = self._roots.setdefault(salt, {})
        while len(ids):
            node = siblings.get(int(ids[0]))
            if node is None:
                siblings[int(ids[0])] = _Node(ids.copy(), [(len(ids), now)])
                self.blocks += len(ids)
                break
            common = node.shared_with(ids)
            node.touch(common, now, known)
            if common < len(ids):
                if common < len(node.ids):
                    node.split(common)
                elif not node.children:
                    self.blocks += len(ids) - common
                    node.ids, node.marks = ids.copy(), [(len(ids), now)]
                    break
            ids, siblings = ids[common:], node.children
        return known


class _Node:
    """Blocks that no path leaves in between.

    ids: int64 [n], n > 0; marks: (stop, touch), deepest first: `touch` was the last of the blocks from the next
    mark's stop up to `stop`. Marks come and go at the end of the list.
    """

    __slots__ = ("children", "ids", "marks")

    def __init__(self, ids: Ids, marks: list[Run], children: dict[int, _Node] | None = None) -> None:
        self.ids = ids
        self.marks = marks
        self.children: dict[int, _Node] = children if children is not None else {}

    def shared_with(self, ids: Ids) -> int:
        """How many leading ids are equal."""
        n = min(len(self.ids), len(ids))
        differ = self.ids[:n] != ids[:n]
        first = int(differ.argmax())
        return first if differ[first] else n

    def touch(self, count: int, now: int, known: list[Run]) -> None:
        """Mark the first `count` blocks, 0 < count <= n, and append what marked them before to `known`."""
        done = 0
        while done < count:
            stop, last = self.marks[-1]
            if stop <= count:
                self.marks.pop()
            blocks = min(stop, count) - done
            if known and known[-1][0] == last:
                blocks += known.pop()[1]
            known.append((last, blocks))
            done = min(stop, count)
        self.marks.append((count, now))

    def split(self, at: int) -> None:
        """Leave the first `at` blocks here, which were just touched, and hang the others below."""
        deeper = [(stop - at, touch) for stop, touch in self.marks[:-1]]
        below = _Node(self.ids[at:].copy(), deeper, self.children)
        self.ids, self.marks = self.ids[:at].copy(), self.marks[-1:]
        self.children = {int(below.ids[0]): below}
