"""Remembers what was stored and how it left the cache, so that a request can be told why it was computed.

A radix tree per salt, as the cache has them, but of what was *ever* stored: without slots, and bounded. Each part
carries the allocations that used it lately. An event of the cache names the last of them, and so says exactly which
part it is about.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from longturn.cache import Allocation, Event, Tokens
from longturn.cache.eviction import Recency, Victims, order
from longturn.cache.radix import Node, RadixTree
from longturn.cache.slots import Runs
from longturn.engine.request import Request
from longturn.explain.miss import SHORT, Loss, LossCause, Miss, Past, why

MOST_TOKENS = 2_000_000
"""Of all trees together, at 4 bytes each; nodes count as NODE_TOKENS more."""
NODE_TOKENS = 256
MOST_EVENTS = 20_000
"""Losses, and allocations by name, that are remembered."""
MOST_USERS = 16
"""Allocations that a part remembers: those that may have used it at the same time."""
MOST_SALTS = 16
"""Of one client, in which a prompt is looked for that is unknown under its own."""


@dataclass(slots=True)
class _User:
    """Who used a part, and when last: the request and session of an allocation, its client, what it had stored at its
    end."""

    request: str
    session: str | None
    client: str
    time: float
    length: int = 0


class _Part(Node):
    """Tokens that were stored, and the allocations that used them, the latest last."""

    __slots__ = ("users",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.users: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Gone:
    """An eviction: the `number`-th that was noted, since times may be equal."""

    number: int
    event: Event
    by_hand: bool


class MissRecorder:
    """Fed by the engine's loop, in its thread: `note` its cache's events, ask when a request is `admitted`, tell what
    it had stored when it has `ended`.

    page: the least number of tokens that is reused; clock: seconds, the cache's.
    """

    def __init__(self, page: int, clock: Callable[[], float], most_tokens: int = MOST_TOKENS) -> None:
        self._page, self._clock, self._most_tokens = page, clock, most_tokens
        self._trees: dict[str, dict[str, RadixTree[_Part]]] = {}
        self._recency = Recency()
        self._leaves: Victims[_Part] = Victims(order("lru"), self._recency)
        self.held = 0
        self._users: dict[int, _User] = {}
        self._gone: dict[int, list[_Gone]] = {}
        self._order: deque[int] = deque()
        self._noted = 0
        self._failed: deque[Event] = deque(maxlen=1000)
        self._disk_cleared = float("-inf")
        self._unnamed: Event | None = None

    def note(self, events: Sequence[Event]) -> None:
        """Take in what happened in the cache, oldest first."""
        cleared: Counter[str] = Counter()
        gone: list[tuple[Event, bool]] = []
        for event in reversed(events):
            if event.kind == "cleared":
                cleared[event.tier] += event.tokens
                if event.tier == "disk":
                    self._disk_cleared = max(self._disk_cleared, event.time)
            elif event.kind == "failed":
                self._failed.append(event)
            elif event.kind == "evicted":
                # Whoever clears a tier evicts from it for nobody, and says so right afterwards.
                by_hand = event.by is None and cleared[event.tier] > 0
                cleared[event.tier] -= event.tokens if by_hand else 0
                gone.append((event, by_hand))
        for event, by_hand in reversed(gone):
            if event.of:
                self._noted += 1
                self._gone.setdefault(event.of, []).append(_Gone(self._noted, event, by_hand))
                self._order.append(event.of)
            elif event.kept_in is None:
                self._unnamed = event
        while len(self._order) > MOST_EVENTS:
            oldest = self._order.popleft()
            self._gone[oldest].pop(0)
            if not self._gone[oldest]:
                del self._gone[oldest]

    def admitted(self, request: Request, allocation: Allocation) -> Miss | None:
        """Why `request` is computed from where `allocation` says. Call it when pages have landed, or not."""
        found, salt, tokens = allocation.reused, request.salt, request.tokens
        client = _client(salt)
        self._users[allocation.id] = _User(request.id, request.session, client, self._clock())
        while len(self._users) > MOST_EVENTS:
            del self._users[next(iter(self._users))]
        miss = why(self._past(request, allocation, client))
        if found:
            self._use(salt, tokens[:found], allocation.id)
        return miss

    def ended(self, salt: str, tokens: Tokens, allocation: Allocation) -> None:
        """An allocation is about to be released; int32 [n] `tokens` are what it leaves in the cache."""
        if (user := self._users.get(allocation.id)) is not None:
            user.time, user.length = self._clock(), len(tokens)
        if len(tokens):
            self._use(salt, tokens, allocation.id)

    def _past(self, request: Request, allocation: Allocation, client: str) -> Past:
        tokens, found, most = request.tokens, allocation.reused, len(request.tokens) - 1
        trees = self._trees.get(client, {})
        tree, stored, behind = trees.get(request.salt), 0, 0
        loss = self._damage(request, allocation)
        if tree is not None:
            node, matched = tree.match(tokens)
            stored = min(matched, most)
            if matched < most:
                behind = self._behind(node, matched, request.session)
            if loss is None and stored > found:
                loss = self._loss(node, found, client)
        elsewhere = 0
        if max(found, stored) < SHORT:
            others = islice((each for salt, each in reversed(trees.items()) if salt != request.salt), MOST_SALTS)
            elsewhere = max((min(each.match(tokens)[1], most) for each in others), default=0)
        return Past(found, stored, behind, elsewhere, self._page, loss)

    def _behind(self, node: _Part, matched: int, session: str | None) -> int:
        """Tokens that were stored by a request of `session` behind the end of a match."""
        parts = [node] if matched < node.end else list(node.children.values())
        for part in sorted(parts, key=lambda part: part.usage.stamp, reverse=True):
            for user in self._users_of(part):
                if user.session == session:
                    return max(user.length, part.end) - matched
        return 0

    def _loss(self, node: _Part, at: int, client: str) -> Loss | None:
        """How the token at `at`, on the way to `node`, left the cache."""
        part = next(step for step in node.path() if at < step.end)
        told = [gone for id in part.users for gone in self._gone.get(id, ())]
        for gone in sorted(told, key=lambda gone: gone.number, reverse=True):
            event = gone.event
            if event.depth <= at < event.depth + event.tokens:
                if event.kept_in == "disk" and self._disk_cleared >= event.time:
                    return Loss("cleared", "disk", ago=self._clock() - self._disk_cleared)
                by = self._users.get(event.by or 0)
                # A client is told of its own requests only.
                name = by.request if by is not None and by.client == client else None
                cause: LossCause = "cleared" if gone.by_hand else "expired" if event.expired else "evicted"
                return Loss(cause, event.tier, event.tokens, event.kept_in, self._clock() - event.time, name)
        # Policies that do not say whose tokens they evict: something went since the last use, and this with it.
        used = max((user.time for user in self._users_of(part)), default=float("inf"))
        if self._unnamed is not None and self._unnamed.time >= used:
            return Loss("evicted", self._unnamed.tier)
        return None

    def _users_of(self, part: _Part) -> Iterator[_User]:
        """Those of its users that are still known, the latest first."""
        return (self._users[id] for id in reversed(part.users) if id in self._users)

    def _damage(self, request: Request, allocation: Allocation) -> Loss | None:
        """Pages of this request that could not be brought up, or not even be fetched while it was waiting."""
        at = allocation.reused
        for event in reversed(self._failed):
            waited = (
                event.by is None and event.time >= request.arrived and event.depth <= at < event.depth + event.tokens
            )
            if waited or event.by == allocation.id:
                return Loss("damaged", event.tier, event.tokens)
        return None

    def _use(self, salt: str, tokens: Tokens, by: int) -> None:
        """Note that an allocation had int32 [n] `tokens` in the cache."""
        trees = self._trees.setdefault(_client(salt), {})
        # The key that pages would be chained to is free here, and keeps the salt.
        tree = trees.get(salt) or trees.setdefault(salt, RadixTree(1, salt.encode(), kind=_Part))
        node, matched = tree.match(tokens)
        if matched < node.end:
            lower, node = node, tree.split(node, matched - node.depth)
            node.users = lower.users
            self.held += NODE_TOKENS
        if matched < len(tokens):
            self.held += len(tokens) - matched
            if node.parent is not None and not node.children:
                node.tokens = np.concatenate((node.tokens, tokens[matched:]))
            else:
                usage = self._recency.fresh(matched, len(tokens) - matched)
                node = tree.add(node, tokens[matched:].copy(), Runs(), [], usage)
                self.held += NODE_TOKENS
        for step in node.path():
            self._recency.touch(step.usage)
            step.users = (*(id for id in step.users[1 - MOST_USERS :] if id != by), by)
        if not node.children:
            self._leaves.offer(node)
        while self.held > self._most_tokens and (oldest := self._leaves.pop(0.0)) is not None:
            self._forget(oldest)

    def _forget(self, leaf: _Part) -> None:
        root = leaf.path()[0].parent
        assert root is not None
        assert leaf.parent is not None
        del leaf.parent.children[int(leaf.tokens[0])]
        self.held -= len(leaf.tokens) + NODE_TOKENS
        if leaf.parent is not root and not leaf.parent.children:
            self._leaves.offer(leaf.parent)
        elif not root.children:
            salt = root.keys[0].decode()
            trees = self._trees[_client(salt)]
            del trees[salt]
            if not trees:
                del self._trees[_client(salt)]


def _client(salt: str) -> str:
    """Whose salt it is. What follows the first slash is the client's own affair: see `serve.respond`."""
    return salt.partition("/")[0]
