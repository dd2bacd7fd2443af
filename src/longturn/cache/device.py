"""The tier on the device: one radix tree per salt over a pool of slots, and who may be evicted from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from longturn.cache.contract import Allocation
from longturn.cache.events import EventLog
from longturn.cache.eviction import Victims
from longturn.cache.lower import LowerTiers, PageRef
from longturn.cache.pages import first_key
from longturn.cache.radix import Node, RadixTree
from longturn.cache.slots import Pool, Run, Runs
from longturn.errors import CacheCorruption


class DeviceTier:
    """The device half of a policy; what is evicted goes to the tiers below where they take it.

    tokens, locked_tokens: in all trees, and those of them that requests hold. version: changes with whatever a hit
    rests on.
    """

    def __init__(
        self,
        pool: Pool,
        lower: LowerTiers,
        victims: Victims[Node],
        events: EventLog,
        clock: Callable[[], float],
        *,
        page_size: int,
        fingerprint: str,
        write_back: bool,
    ) -> None:
        self.pool = pool
        self.tokens = self.locked_tokens = 0
        self.version = 0
        self._lower = lower
        self._victims = victims
        self._events = events
        self._clock = clock
        self._page_size = page_size
        self._fingerprint = fingerprint
        self._write_back = write_back
        self._trees: dict[str, RadixTree[Node]] = {}

    # -- trees ---------------------------------------------------------------------------------------------------

    def tree(self, salt: str) -> RadixTree[Node]:
        """The tree of `salt`; an empty one, which is not kept, where there is none."""
        return self._trees.get(salt) or self._new_tree(salt)

    def tree_to_grow(self, salt: str, allocations: Iterable[Allocation]) -> RadixTree[Node]:
        """The tree of `salt`, made if need be. Empty ones that no allocation uses are dropped on the way."""
        if salt not in self._trees:
            used = {allocation.salt for allocation in allocations}
            self._trees = {name: tree for name, tree in self._trees.items() if tree.root.children or name in used}
            self._trees[salt] = self._new_tree(salt)
        return self._trees[salt]

    def split(self, tree: RadixTree[Node], node: Node, at: int) -> Node:
        """Cut a node in two after `at` of its tokens; returns the first part."""
        self.version += 1
        return tree.split(node, at)

    def grew(self, n: int) -> None:
        """Count n more tokens in nodes that requests hold."""
        self.tokens += n
        self.locked_tokens += n

    def nodes(self) -> Iterator[Node]:
        """All but the roots."""
        return (node for tree in self._trees.values() for node in tree.nodes())

    def _new_tree(self, salt: str) -> RadixTree[Node]:
        return RadixTree(self._page_size, first_key(self._fingerprint, salt))

    # -- locks and room ------------------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Keep a node from eviction; as often as it is unlocked."""
        if node.locks == 0:
            self.locked_tokens += len(node.tokens)
            self._victims.withdraw(node)
        node.locks += 1

    def unlock(self, path: Iterable[Node]) -> None:
        """Let go of nodes that were locked."""
        for node in path:
            node.locks -= 1
            if node.locks == 0:
                self.locked_tokens -= len(node.tokens)
                self.settle(node)

    def settle(self, node: Node) -> None:
        """Put a node where its usage says among those that may be evicted, if it is one of them."""
        if node.parent is not None and not node.locks and not node.children:
            self._victims.offer(node)

    def room(self, n: int, after: int | None, by: int) -> Runs | None:
        """Slots for `n` tokens, by eviction if need be; None when too much is held."""
        if n > self.pool.free_count + self.tokens - self.locked_tokens:
            return None
        if n > self.pool.free_count:
            self.evict(n - self.pool.free_count, by)
        return self.pool.allocate(n, after)

    def evict(self, shortfall: int, by: int | None) -> int:
        """Free at least `shortfall` slots, or all there are; returns how many."""
        freed, now, size = 0, self._clock(), self._page_size
        while freed < shortfall and (node := self._victims.pop(now)) is not None:
            keep = max((node.end - (shortfall - freed)) // size * size - node.depth, 0)
            n, n_keys = len(node.tokens) - keep, (node.depth + keep) // size - node.depth // size
            lost = node.keys[n_keys:]
            if lost and self._write_back:
                self._save_back(node, lost, by)
            kept_in = self._lower.kept_in(lost[0]) if lost else None
            self._events.record("evicted", "device", n, by, node.depth + keep, kept_in, node.usage)
            self.pool.free(node.runs.slice(keep, keep + n))
            self.tokens -= n
            freed += n
            parent = node.parent
            assert parent is not None
            if keep:
                node.tokens, node.runs = node.tokens[:keep], node.runs.slice(0, keep)
                del node.keys[n_keys:]
                self.settle(node)
            else:
                del parent.children[int(node.tokens[0])]
                self.settle(parent)
        self.version += 1
        return freed

    def _save_back(self, node: Node, lost: list[bytes], by: int | None) -> None:
        """Write-back: the last keys of `node` are about to leave the device."""
        path = node.path()
        tokens = np.concatenate([step.tokens for step in path])
        runs = Runs(run for step in path for run in step.runs)
        keys = [key for step in path for key in step.keys]
        root = path[0].parent
        assert root is not None
        parents, first = [root.keys[0], *keys], len(keys) - len(lost)
        refs = [PageRef(key, parents[first + i], first + i) for i, key in enumerate(lost)]
        self._lower.save(refs, tokens, runs, by, node.usage.by)

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self, allocations: Iterable[Allocation]) -> None:
        """Raises CacheCorruption unless every slot and every lock is accounted for by the trees and `allocations`."""
        held: list[Run] = []
        locks: dict[int, int] = {}
        for allocation in allocations:
            if allocation.where.end != allocation.committed:
                raise CacheCorruption("an allocation ends elsewhere than its node")
            held += allocation.runs.slice(allocation.committed, len(allocation.runs))
            for step in allocation.where.path():
                locks[id(step)] = locks.get(id(step), 0) + 1
        tokens = locked = 0
        for tree in self._trees.values():
            tree.check()
        for node in self.nodes():
            held += node.runs
            tokens += len(node.tokens)
            locked += len(node.tokens) if node.locks else 0
            if node.locks != locks.get(id(node), 0):
                raise CacheCorruption(f"{node.locks} locks on a node that {locks.get(id(node), 0)} requests hold")
            if (node in self._victims) != (not node.locks and not node.children):
                raise CacheCorruption("a node is queued for eviction although held, or the reverse")
            n_keys = node.end // self._page_size - node.depth // self._page_size
            if self._lower.exist and len(node.keys) != n_keys:
                raise CacheCorruption(f"a node from {node.depth} to {node.end} has {len(node.keys)} page keys")
        self.pool.check(held)
        if (tokens, locked) != (self.tokens, self.locked_tokens):
            raise CacheCorruption(f"{tokens} tokens ({locked} locked) counted, {self.tokens} booked")
