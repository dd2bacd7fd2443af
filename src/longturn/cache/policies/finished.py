"""Radix trees that a request enters when it ends: what LightLLM and TGI have in common.

A request locks the prefix that it finds, computes the rest in slots of its own, and leaves them to the tree of its salt
at its end, whether it was done or not. Where others were faster, their copies stay and its own are freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.eviction import Recency, Usage, Victims
from longturn.cache.policies.base import EnginePolicy, Sizes
from longturn.cache.radix import Node, RadixTree, Tokens
from longturn.cache.slots import Run, Runs
from longturn.errors import CacheCorruption


@dataclass(frozen=True)
class Place:
    """Where a hit was found: the first `matched` tokens end in `node` (None: no tree), at a `version` of the trees."""

    node: Node | None
    matched: int
    version: int


@dataclass(eq=False)
class Running:
    """What is known of a running request: the node that its lock ends in, how many of its slots are the tree's, the
    length of its prompt, and the latest tokens whose KV exists."""

    node: Node
    shared: int
    prompt: int
    tokens: Tokens


class FinishedTrees(EnginePolicy):
    """The shared part. A subclass says what is found, stamped, inserted and kept.

    capacity: slots; grain: tokens in a block of the engine; key: the order in which leaves are evicted. `_running` is
    what it notes of a request.
    """

    _running = Running

    def __init__(self, sizes: Sizes, capacity: int, grain: int, key: Callable[[Usage], Any]) -> None:
        super().__init__(sizes)
        self._grain = grain
        self._pool = sizes.pool(capacity)
        self._trees: dict[str, RadixTree[Node]] = {}
        self._recency = Recency()
        self._victims: Victims[Node] = Victims(key, self._recency)
        self._tree_tokens = self._locked_tokens = self._version = 0

    # -- the life of a request -----------------------------------------------------------------------------------

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        allocation.where.tokens, allocation.committed = tokens, len(tokens)

    def release(self, allocation: Allocation) -> None:
        del self._allocations[allocation.id]
        running: Running = allocation.where
        left = self._leaves(allocation)
        found = running.shared
        if left is not None:
            found = self._insert(self._tree(allocation.salt), running.tokens[:left], allocation.runs)
        else:
            left = running.shared
        self._pool.free(allocation.runs.slice(running.shared, found))
        self._pool.free(allocation.runs.slice(left, len(allocation.runs)))
        self._unlock(running.node.path())
        self._version += 1

    def _leaves(self, allocation: Allocation) -> int | None:
        """How many leading tokens of an ending request the tree gets, None when it is not to be touched."""
        raise NotImplementedError

    def _insert(self, tree: RadixTree[Node], tokens: Tokens, runs: Runs) -> int:
        """Bring int32 [n] `tokens`, which lie in `runs`, into `tree`; returns how many were there already."""
        raise NotImplementedError

    def _kept(self, leaf: Node, missing: int) -> int:
        """How many tokens to leave of `leaf`, which goes first, when `missing` slots are wanted."""
        raise NotImplementedError

    # -- trees, locks and room -----------------------------------------------------------------------------------

    def _find(self, tokens: Tokens, salt: str) -> Place:
        """The deepest node of the longest match. Read only."""
        tree = self._trees.get(salt)
        node, matched = (None, 0) if tree is None else tree.match(tokens)
        return Place(node if matched else None, matched, self._version)

    def _path(self, place: Place, cut: bool) -> list[Node]:
        """The nodes that lead to a place found just now; with `cut` the last one is cut where the match ends."""
        if place.node is None:
            return []
        if cut and place.matched < place.node.end:
            return self._tree_of(place.node).split(place.node, place.matched - place.node.depth).path()
        return place.node.path()

    def _start(self, hit: Hit, path: list[Node], cached: dict[str, int], output: int) -> Allocation:
        """A request that holds the nodes of `path`, locked by now, and what it was promised of them."""
        shared = min(sum(len(node.runs) for node in path), hit.where.matched)
        runs = Runs(run for node in path for run in node.runs).slice(0, shared)
        allocation = self._allocate(hit, runs, cached, output)
        node = path[-1] if path else self._tree(hit.salt).root
        allocation.where = self._running(node, shared, len(hit.tokens), hit.tokens)
        self._version += 1
        return allocation

    def _add(self, tree: RadixTree[Node], parent: Node, tokens: Tokens, runs: Runs, usage: Usage) -> Node:
        """Hang a new leaf below `parent`."""
        node = tree.add(parent, tokens.copy(), runs, [], usage)
        self._tree_tokens += len(tokens)
        self._victims.withdraw(parent)
        self._settle(node)
        return node

    def _lock(self, path: Iterable[Node]) -> None:
        for node in path:
            if not node.locks:
                self._locked_tokens += len(node.runs)
                self._victims.withdraw(node)
            node.locks += 1

    def _unlock(self, path: Iterable[Node]) -> None:
        for node in path:
            node.locks -= 1
            if not node.locks:
                self._locked_tokens -= len(node.runs)
                self._settle(node)

    def _settle(self, node: Node) -> None:
        """Queue `node` for eviction, anew if need be, when it may be evicted."""
        if node.parent is not None and not node.locks and not node.children:
            self._victims.offer(node)

    def _available(self) -> int:
        """Slots that are free or could be freed."""
        return self._pool.free_count + self._tree_tokens - self._locked_tokens

    def _evict(self, missing: int, by: int | None) -> int:
        """Evict until `missing` slots are freed, or all that can be; returns how many were."""
        freed = 0
        while freed < missing and (node := self._victims.pop(0.0)) is not None:
            keep, n = self._kept(node, missing - freed), len(node.runs)
            self._events.record("evicted", "device", n - keep, by, node.depth + keep)
            self._pool.free(node.runs.slice(keep, n))
            self._tree_tokens -= n - keep
            freed += n - keep
            parent = node.parent
            assert parent is not None
            if keep:
                node.tokens, node.runs = node.tokens[:keep], node.runs.slice(0, keep)
                self._settle(node)
            else:
                self._tree_of(node).remove(node)
                self._removed(node)
                self._settle(parent)
        self._version += 1
        return freed

    def _removed(self, node: Node) -> None:
        """A leaf is gone from its tree."""

    def _tree_of(self, node: Node) -> RadixTree[Node]:
        """The tree that `node` is in; its root is named by its salt."""
        while node.parent is not None:
            node = node.parent
        return self._trees[node.keys[0].decode()]

    def _tree(self, salt: str) -> RadixTree[Node]:
        """The tree of `salt`, made if need be. Those that are empty are dropped on the way."""
        if salt not in self._trees:
            self._trees = {name: tree for name, tree in self._trees.items() if tree.root.children}
            self._trees[salt] = RadixTree(1, salt.encode(), self._grain)
        return self._trees[salt]

    # -- pictures and checks -------------------------------------------------------------------------------------

    def _clear(self, tier: str) -> int:
        return self._evict(self._pool.capacity, None)

    def _tiers(self) -> list[TierState]:
        used = self._pool.capacity - self._pool.free_count
        return [TierState("device", self._pool.capacity, used, self._tree_tokens - self._locked_tokens)]

    def check_integrity(self) -> None:
        held: list[Run] = []
        locks: dict[int, int] = {}
        for allocation in self._allocations.values():
            running: Running = allocation.where
            held += allocation.runs.slice(running.shared, len(allocation.runs))
            if running.node.end < running.shared or allocation.committed > len(running.tokens):
                raise CacheCorruption(f"request {allocation.id} holds less than it says")
            for step in running.node.path():
                locks[id(step)] = locks.get(id(step), 0) + 1
        tokens = locked = 0
        for tree in self._trees.values():
            tree.check()
            for node in tree.nodes():
                held += node.runs
                tokens += len(node.runs)
                locked += len(node.runs) if node.locks else 0
                if node.locks != locks.get(id(node), 0):
                    raise CacheCorruption(f"{node.locks} locks on a node that {locks.get(id(node), 0)} requests hold")
                if (node in self._victims) != (not node.locks and not node.children):
                    raise CacheCorruption("a node is queued for eviction although held, or the reverse")
        self._pool.check(held)
        if (tokens, locked) != (self._tree_tokens, self._locked_tokens):
            raise CacheCorruption(f"{tokens} tokens ({locked} locked) counted, {self._tree_tokens} booked")
