"""Which prefixes the sessions of a trace share, and where their paths part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from longturn.lab.trace.form import Ids

STEPS = (1, 2, 10, 100, 1000)
"""Where the groups of blocks by the number of their sessions begin."""

NEARLY = 0.9
"""A prefix that is more than this of another one is not told apart from it."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that several sessions begin with and go on from in different ways: its blocks, and how many sessions."""

    blocks: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Group:
    """The distinct blocks that at least as many `sessions` use, and fewer than the next group's."""

    sessions: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """by_sessions: blocks by how many sessions use them; largest: the prefixes that save most when all but the first of
    their sessions find them cached, without those that are nearly the same; forks: places where paths part, of several
    sessions and of one.
    """

    by_sessions: list[Group]
    largest: list[Prefix]
    forks_between_sessions: int
    forks_within_sessions: int


class SharingTree:
    """The prompts of a trace as a tree whose nodes know their sessions."""

    def __init__(self) -> None:
        self._roots: dict[str, dict[int, _Node]] = {}

    def add(self, ids: Ids, session: int, salt: str = "") -> None:
        """Add a prompt, int64 [n], of a session, which is given by a number."""
        siblings = self._roots.setdefault(salt, {})
        while len(ids):
            node = siblings.get(int(ids[0]))
            if node is None:
                siblings[int(ids[0])] = _Node(ids.copy(), {session}, {})
                return
            common = node.shared_with(ids)
            if common < len(node.ids) and common < len(ids):
                node.split(common)
            elif common < len(node.ids):
                if session not in node.sessions:
                    node.split(common)
            elif common < len(ids) and not node.children and node.sessions == {session}:
                node.ids = ids.copy()
                return
            node.sessions.add(session)
            ids, siblings = ids[common:], node.children

    def summary(self, most: int) -> Sharing:
        """What it holds, with at most `most` prefixes."""
        groups = dict.fromkeys(STEPS, 0)
        prefixes: list[_Place] = []
        between = within = 0
        for place in self._places():
            node, n_sessions = place.node, len(place.node.sessions)
            groups[max(step for step in STEPS if step <= n_sessions)] += len(node.ids)
            n_kept = max((len(child.sessions) for child in node.children.values()), default=0)
            if n_sessions > 1 and n_kept < n_sessions:
                prefixes.append(place)
            if len(node.children) > 1:
                between += n_sessions > 1
                within += n_sessions == 1
        prefixes.sort(key=lambda place: place.end * (len(place.node.sessions) - 1), reverse=True)
        chosen: list[_Place] = []
        for place in prefixes:
            if len(chosen) < most and not any(place.is_nearly(other) for other in chosen):
                chosen.append(place)
        return Sharing(
            [Group(*group) for group in groups.items()],
            [Prefix(place.end, len(place.node.sessions)) for place in chosen],
            between,
            within,
        )

    def _places(self) -> Iterator[_Place]:
        """All nodes."""
        stack = [_Place(node, len(node.ids), None) for roots in self._roots.values() for node in roots.values()]
        while stack:
            place = stack.pop()
            yield place
            stack.extend(_Place(child, place.end + len(child.ids), place) for child in place.node.children.values())


class _Place(NamedTuple):
    """A node, how many blocks lead from the root to its end, and where it hangs."""

    node: _Node
    end: int
    above: _Place | None

    def is_nearly(self, other: _Place) -> bool:
        """Whether one of both prefixes is nearly all of the other."""
        short, place = (self, other) if self.end < other.end else (other, self)
        if short.end < NEARLY * place.end:
            return False
        while place.end > short.end and place.above is not None:
            place = place.above
        return place.node is short.node


@dataclass(slots=True)
class _Node:
    """Blocks, int64 [n], n > 0, that all of `sessions` have in common."""

    ids: Ids
    sessions: set[int]
    children: dict[int, _Node]

    def shared_with(self, ids: Ids) -> int:
        n = min(len(self.ids), len(ids))
        differ = self.ids[:n] != ids[:n]
        first = int(differ.argmax())
        return first if differ[first] else n

    def split(self, at: int) -> None:
        """Leave the first `at` blocks here and hang the others below."""
        below = _Node(self.ids[at:].copy(), set(self.sessions), self.children)
        self.ids, self.children = self.ids[:at].copy(), {int(below.ids[0]): below}
