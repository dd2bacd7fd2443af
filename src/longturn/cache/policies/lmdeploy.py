"""What LMDeploy's three caches have in common here: a tree of whole blocks that is evicted from its tails.

LMDeploy stamps single blocks, and each of its engines sees to it that a block is never older than what continues it:
TurboMind stamps the blocks of a request from the last to the first, the PyTorch engine evicts leaves only. So blocks
can lie together in the nodes of a radix tree: a node keeps the stamp of its last block, the ones before it have the
next higher stamps, and the lowest stamp of all is always found at the end of a leaf. Requests that run at the same
time are stamped when they end, which is when they last ran.

Blocks are findable when they are computed, not before; in the engines a second request waits for the first one there,
and here the scheduler sees to it. A cancelled request is kept like one that has ended, since nobody tells which it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.eviction import Recency, Usage, Victims, order
from longturn.cache.policies.base import EnginePolicy, Sizes
from longturn.cache.radix import NO_TOKENS, Node, RadixTree, Tokens
from longturn.cache.slots import Run, Runs
from longturn.errors import CacheCorruption, ConfigError

BLOCK = 64
# Most tokens of a prompt in one step: max_prefill_token_num, max_forward_token_num.
_CHUNK = 8192


class Block(Node):
    """Blocks below their parent; the stamp is that of the last one. A leaf may be a block that is filled in part."""

    __slots__ = ()

    def sound(self) -> bool:
        return 0 < len(self.tokens) <= len(self.runs)


@dataclass(eq=False)
class Place:
    """Where a request stands in the tree.

    node: its last block that is indexed; prompt: tokens of its prompt; tokens: all that was committed, prompt and
    output; boundary: where a block filled in part is to be kept, 0 for nowhere; source: one that is being copied.
    """

    tree: RadixTree[Block]
    node: Block
    prompt: int
    tokens: Tokens = field(default_factory=lambda: NO_TOKENS, repr=False)
    boundary: int = 0
    source: Block | None = None


class BlockTree(EnginePolicy):
    """The shared part. `allocation.committed` counts the tokens of indexed blocks; the rest is the request's own."""

    def __init__(self, name: str, block_size: int, sizes: Sizes) -> None:
        super().__init__(sizes)
        if not 0 < block_size <= sizes.device:
            raise ConfigError(f"{name}:block_size is {block_size}: choose 1 up to the {sizes.device} of device memory")
        self.name, self.page_size = name, block_size
        self.longest = sizes.device // block_size * block_size
        self.chunk_tokens = -(-_CHUNK // sizes.unit)
        self.overlap = not sizes.real
        self._pool = sizes.pool(self.longest)
        self._victims: Victims[Block] = Victims(order("lru"), Recency())
        self._trees: dict[str, RadixTree[Block]] = {"": self._new_tree()}
        self._stamp = 0
        # Slots of blocks that nobody uses.
        self._idle = 0

    # -- what the engines differ in ------------------------------------------------------------------------------

    def _matchable(self, prompt: int) -> int:
        """Leading tokens of a prompt, in whole blocks, that are looked for: fewer than it has."""
        return (prompt - 1) // self.page_size * self.page_size

    def _needed(self, prompt: int) -> int:
        """Slots that a request begins with."""
        return self._whole_blocks(prompt)

    def _finish(self, allocation: Allocation) -> None:
        """Index what is indexed at the end of a request. What remains its own is freed."""

    # -- the life of a request -----------------------------------------------------------------------------------

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        tree = self._trees.get(salt)
        matched = tree.match(tokens[: self._matchable(len(tokens))])[1] if tree else 0
        return Hit(tokens, salt, device=min(matched, len(tokens) - 1))

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        prompt, tree = len(hit.tokens), self._tree_for(hit.salt)
        node, matched = tree.match(hit.tokens[: self._matchable(prompt)])
        if matched < node.end:
            node = self._split(tree, node, matched - node.depth)
        path = node.path()
        for step in path:
            self._lock(step)
        runs = Runs(run for step in path for run in step.runs)
        room = self._room(self._needed(prompt) - matched, runs.end)
        if room is None:
            for step in reversed(path):
                self._unlock(step)
            return None
        runs.extend(room)
        allocation = self._allocate(hit, runs, {"device": min(matched, prompt - 1)}, output)
        allocation.committed, allocation.where = matched, Place(tree, node, prompt)
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        missing = self._whole_blocks(length) - len(allocation.runs)
        return missing <= 0 or self._grow(allocation, missing)

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        place: Place = allocation.where
        place.tokens = tokens
        if allocation.committed < place.prompt:
            self._index(allocation, min(len(tokens), place.prompt))

    def release(self, allocation: Allocation) -> None:
        del self._allocations[allocation.id]
        self._finish(allocation)
        own = self._whole_blocks(allocation.committed)
        self._pool.free(allocation.runs.slice(own, len(allocation.runs)))
        self._stamp_and_unlock(allocation.where.node, len(allocation.runs))

    # -- blocks --------------------------------------------------------------------------------------------------

    def _whole_blocks(self, n_tokens: int) -> int:
        """The slots of all blocks that `n_tokens` tokens take."""
        return -(-n_tokens // self.page_size) * self.page_size

    def _kept(self, allocation: Allocation) -> int:
        """Tokens whose KV an ended request leaves. The engines never use that of the decode launched too many."""
        place: Place = allocation.where
        n = len(place.tokens)
        return n - 1 if self.overlap and n > place.prompt else n

    def _index(self, allocation: Allocation, stop: int) -> None:
        """Make the whole blocks of the first `stop` committed tokens findable."""
        place: Place = allocation.where
        at, stop = allocation.committed, stop - stop % self.page_size
        if stop <= at:
            return
        node, tree, tokens = place.node, place.tree, place.tokens[:stop]
        while at < stop and (found := tree.step(node, tokens, at)) is not None:
            node, shared = found
            if shared < len(node.tokens):
                node = self._split(tree, node, shared)
            self._join(allocation, node)
            at += shared
        if at < stop:
            runs = allocation.runs.slice(at, stop)
            if node.locks == 1 and not node.children:
                node.tokens = np.concatenate((node.tokens, tokens[at:]))
                node.runs.extend(runs)
            else:
                node = tree.add(node, tokens[at:].copy(), runs, [], Usage(0))
                node.locks = 1
        allocation.committed, place.node = stop, node

    def _join(self, allocation: Allocation, node: Block) -> None:
        """Use the blocks of `node`, which were there first, instead of the request's own copies, which are freed."""
        self._pool.free(allocation.runs.slice(node.depth, node.end))
        allocation.runs = allocation.runs.spliced(node.depth, node.end, node.runs)
        self._lock(node)

    def _split(self, tree: RadixTree[Block], node: Block, at: int) -> Block:
        upper = tree.split(node, at)
        upper.usage.stamp += len(node.tokens) // self.page_size
        return upper

    # -- locks, stamps and room ----------------------------------------------------------------------------------

    def _lock(self, node: Block) -> None:
        if node.locks == 0:
            self._idle -= len(node.runs)
            self._victims.withdraw(node)
        node.locks += 1

    def _unlock(self, node: Block) -> None:
        node.locks -= 1
        if node.locks == 0:
            self._idle += len(node.runs)
            self._settle(node)

    def _settle(self, node: Block) -> None:
        if node.parent is not None and not node.locks and not node.children:
            self._victims.offer(node)

    def _stamp_and_unlock(self, node: Block, length: int) -> None:
        """Stamp the blocks up to `node` from the last to the first, those of a request that held `length` slots."""
        for step in reversed(node.path()):
            step.usage.stamp = self._stamp + (length - step.end) // self.page_size + 1
            self._unlock(step)
        self._stamp += length // self.page_size

    def _grow(self, allocation: Allocation, n: int) -> bool:
        """Take `n` more slots for a request, if there is room."""
        room = self._room(n, allocation.runs.end)
        if room is not None:
            allocation.runs.extend(room)
        return room is not None

    def _room(self, n: int, after: int | None = None) -> Runs | None:
        """`n` slots, by eviction if need be; None, and nothing evicted, when there are not so many."""
        if n > self._pool.free_count + self._idle:
            return None
        self._evict(n - self._pool.free_count)
        return self._pool.allocate(n, after)

    def _evict(self, shortfall: int) -> int:
        """Free `shortfall` slots, or all that are idle; returns how many."""
        freed = 0
        while freed < shortfall and (node := self._victims.pop(0.0)) is not None:
            n = min(shortfall - freed, len(node.runs))
            keep = len(node.runs) - n
            self._pool.free(node.runs.slice(keep, keep + n))
            self._idle -= n
            freed += n
            self._events.record("evicted", "device", n, None, node.depth + keep)
            if keep:
                node.tokens, node.runs = node.tokens[:keep], node.runs.slice(0, keep)
                node.usage.stamp += n // self.page_size
                self._victims.offer(node)
            else:
                self._forget(node)
        return freed

    def _forget(self, node: Block) -> None:
        """Take a leaf that has lost all its blocks out of its tree."""
        parent = node.parent
        assert parent is not None
        # All trees tell siblings apart in the same way, so any of them will do.
        self._trees[""].remove(node)
        self._settle(parent)

    def _tree_for(self, salt: str) -> RadixTree[Block]:
        """The tree of `salt`, made if need be. Those that are empty and not in use are dropped on the way."""
        if salt not in self._trees:
            used = {"", *(allocation.salt for allocation in self._allocations.values())}
            self._trees = {name: tree for name, tree in self._trees.items() if tree.root.children or name in used}
            self._trees[salt] = self._new_tree()
        return self._trees[salt]

    def _new_tree(self) -> RadixTree[Block]:
        return RadixTree(self.page_size, grain=self.page_size, kind=Block)

    # -- pictures and checks -------------------------------------------------------------------------------------

    def _clear(self, tier: str) -> int:
        return self._evict(self.longest)

    def _tiers(self) -> list[TierState]:
        used = self._pool.capacity - self._pool.free_count
        return [TierState("device", self._pool.capacity, used, self._idle)]

    def check_integrity(self) -> None:
        held: list[Run] = []
        locks: dict[int, int] = {}
        for allocation in self._allocations.values():
            place: Place = allocation.where
            if place.node.end != allocation.committed or place.node.end % self.page_size:
                raise CacheCorruption(
                    f"a request with {allocation.committed} tokens ends in a node at {place.node.end}"
                )
            held += allocation.runs.slice(allocation.committed, len(allocation.runs))
            for step in place.node.path() if place.source is None else [*place.node.path(), place.source]:
                locks[id(step)] = locks.get(id(step), 0) + 1
        idle = 0
        for node in self._nodes():
            held += node.runs
            idle += 0 if node.locks else len(node.runs)
            if node.locks != locks.get(id(node), 0):
                raise CacheCorruption(f"{node.locks} locks on a node that {locks.get(id(node), 0)} requests hold")
            if (node in self._victims) != (not node.locks and not node.children):
                raise CacheCorruption("a node is queued for eviction although held, or the reverse")
        self._pool.check(held)
        if idle != self._idle:
            raise CacheCorruption(f"{idle} slots are idle, {self._idle} are booked")

    def _nodes(self) -> list[Block]:
        """All that holds blocks, after a check of the trees."""
        for tree in self._trees.values():
            tree.check()
        nodes = [node for tree in self._trees.values() for node in tree.nodes()]
        for node in nodes:
            if len(node.runs) != self._whole_blocks(len(node.tokens)):
                raise CacheCorruption(f"{len(node.tokens)} tokens lie in {len(node.runs)} slots: no whole blocks")
        return nodes
