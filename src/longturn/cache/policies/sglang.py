"""SGLang's RadixAttention: a radix tree over whole pages whose leaves are evicted as whole nodes.

Follows SGLang 0.5.23 (`mem_cache/unified_radix_cache.py`, `unified_cache/unified_tree_core.py`, `evict_policy.py`,
`managers/schedule_policy.py`); the classic variant follows 0.5.16 (`radix_cache.py`). Zheng et al. 2024, "SGLang".

- Keys are cut to whole pages, of one token by default; a prompt is matched up to its last token but one.
- A match stamps its path, deepest newest. Where it ends inside a node it cuts it, and stamps the dead lower part too.
- Prompts enter the tree after every chunk, answers when they end; then the leaf is cut where the prompt ends, so that
  an answer can be evicted without its prompt. A prompt whose answer is one token enters only when that ends.
- Victims are unlocked leaves, whole, until the shortfall is freed. The prompt's step asks for a page more than it
  needs, a decoding step for a whole page each time, where pages are larger than a token.
- Classic: whenever room is short the whole amount is evicted; leaves are not cut where prompts end; a node's hits grow
  with every insertion instead of once per request.

Left out: sessions, tlru, hybrid models, the refresh of waiting prompts' prefixes, postponement within a batch. Of a
request that ends by a stop token SGLang keeps one token more; here requests end by length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.eviction import Recency, Victims, order
from longturn.cache.hints import Hint
from longturn.cache.policies.base import EnginePolicy, Sizes
from longturn.cache.policies.options import choice, tokens
from longturn.cache.radix import Node, RadixTree, Tokens
from longturn.cache.slots import Run, Runs
from longturn.errors import CacheCorruption, ConfigError

# Of the output that a request may produce, admission asks room for at most so many tokens.
_CLIPPED_OUTPUT = 4096
_LOWEST = -(1 << 62)
N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class SGLangOptions:
    """What SGLang lets users set (`--page-size`, `--radix-eviction-policy`, `--chunked-prefill-size`)."""

    page_size: int = tokens(1, "tokens in a page; only whole pages are reused")
    eviction: Literal["lru", "lfu", "slru", "priority", "fifo"] = choice("lru", "which leaf goes first")
    chunked_prefill_size: int = tokens(0, "most tokens of a prompt that a step computes, 0 for all of them")


@dataclass(frozen=True)
class Place(Generic[N]):
    """Where a hit was found: the first `matched` tokens end in `node` (None: no tree), at a `version` of the trees."""

    node: N | None
    matched: int
    version: int


@dataclass(eq=False)
class Running(Generic[N]):
    """What is known of a running request: the node that its lock ends in, the lengths of prompt and output, how many
    of its tokens were inserted, and the latest tokens whose KV exists."""

    node: N
    prompt: int
    output: int
    inserted: int = 0
    tokens: Tokens | None = None


class SGLangTree(EnginePolicy, Generic[N]):
    """What the policies with and without a host tier share. `kind` makes the nodes."""

    def __init__(self, options: SGLangOptions, sizes: Sizes, kind: type[N], *, classic: bool) -> None:
        super().__init__(sizes)
        page = options.page_size
        chunk = options.chunked_prefill_size
        if page < 1 or chunk < 0 or chunk % page:
            raise ConfigError("a page has at least one token, and chunked_prefill_size is a multiple of page_size")
        self.page_size, self.chunk_tokens = page, chunk or None
        # Longer requests are refused: a page must be left.
        self.longest = sizes.device // page * page - page - 1
        self._classic = classic
        self._kind = kind
        self._pool = sizes.pool(sizes.device // page * page)
        self._trees: dict[str, RadixTree[N]] = {}
        self._recency = Recency()
        self._order = order(options.eviction)
        self._victims: Victims[N] = Victims(self._order, self._recency)
        self._tree_tokens = self._locked_tokens = self._version = 0

    # -- the life of a request -----------------------------------------------------------------------------------

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        node, matched = self._find(tokens, salt)
        return Hit(tokens, salt, device=matched, where=Place(node, matched, self._version))

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        return self._start(hit, output, self._path(hit))

    def extend(self, allocation: Allocation, length: int) -> bool:
        page, held = self.page_size, len(allocation.runs)
        running: Running[N] = allocation.where
        if length > running.prompt:
            need = max(page, length - held)
        elif length > held:
            need = length - held + (page if page > 1 else 0)
        else:
            return True
        self._make_room(need, allocation.id)
        runs = self._pool.allocate(max(-(-length // page) * page - held, 0), allocation.runs.end)
        if runs is None:
            return False
        allocation.runs.extend(runs)
        return True

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        running: Running[N] = allocation.where
        if len(tokens) < allocation.committed:
            return
        running.tokens = tokens
        if len(tokens) < running.prompt:
            self._insert(allocation, tokens, chunk=True)
        elif len(tokens) == running.prompt and running.output > 1:
            self._insert(allocation, tokens)

    def release(self, allocation: Allocation) -> None:
        running: Running[N] = allocation.where
        self._finish(allocation, running)
        del self._allocations[allocation.id]
        self._pool.free(allocation.runs.slice(allocation.committed, len(allocation.runs)))
        self._unlock(running.node.path())

    def hint(self, hint: Hint) -> int:
        """A request's priority reaches what it has in the tree; other hints are unknown to SGLang."""
        if hint.kind != "priority" or hint.salt not in self._trees:
            return 0
        node, matched = self._trees[hint.salt].match(hint.tokens[: hint.stop])
        for step in node.path():
            step.usage.priority = max(step.usage.priority, hint.level)
            self._settle(step)
        return max(matched - hint.start, 0)

    # -- matching and inserting ----------------------------------------------------------------------------------

    def _whole(self, n: int) -> int:
        """`n` tokens, cut to whole pages."""
        return max(n - n % self.page_size, 0)

    def _find(self, tokens: Tokens, salt: str) -> tuple[N | None, int]:
        """The deepest node of the longest match, and the tokens matched. Read only."""
        tree = self._trees.get(salt)
        return (None, 0) if tree is None else tree.match(tokens[: self._whole(len(tokens) - 1)])

    def _path(self, hit: Hit) -> list[N]:
        """The nodes of the longest match, the last of them cut where it ends."""
        place: Place[N] = hit.where
        node, matched = place.node, place.matched
        if place.version != self._version:
            node, matched = self._find(hit.tokens, hit.salt)
        if node is None:
            return []
        if matched < node.end:
            node = self._split(self._trees[hit.salt], node, matched - node.depth)
        return node.path()

    def _start(self, hit: Hit, output: int, path: list[N]) -> Allocation | None:
        """An allocation that holds `path`, which lies on the device, if the rest may be expected to fit."""
        self._lock(path)
        runs = Runs(run for node in path for run in node.runs)
        clipped = min(output, -(-_CLIPPED_OUTPUT // self.sizes.unit))
        awaited = sum(max(other.where.prompt - len(other.runs), 0) for other in self._allocations.values())
        if len(hit.tokens) - len(runs) + clipped + self.page_size >= self._available() - awaited:
            self._unlock(path)
            return None
        self._stamp(path)
        node = path[-1] if path else self._tree(hit.salt).root
        allocation = self._allocate(hit, runs, {"device": len(runs)}, output)
        allocation.where = Running(node, len(hit.tokens), output)
        return allocation

    def _insert(self, allocation: Allocation, tokens: Tokens, *, chunk: bool = False) -> None:
        """Bring the whole pages of `tokens`, whose KV exists, into the tree and lock them."""
        running: Running[N] = allocation.where
        tree, node = self._trees[allocation.salt], running.node
        at, n = allocation.committed, self._whole(len(tokens))
        path, key = node.path(), tokens[:n]
        self._stamp(path)
        for step in path[self._counted(path, running, chunk) :]:
            self._count(step)
        while (found := tree.step(node, key, at)) is not None:
            child, shared = found
            self._stamp((child,))
            child.usage.priority = max(child.usage.priority, 0)
            if shared < len(child.tokens):
                child = self._split(tree, child, shared)
            self._lock((child,))
            revived = self._adopt(allocation, child)
            if not self._counted((child,), running, chunk) and not (revived and self._classic):
                self._count(child)
            node, at = child, at + shared
        if at < n:
            usage = self._recency.fresh(at, n - at)
            usage.hits = 0
            node = tree.add(node, tokens[at:n].copy(), allocation.runs.slice(at, n), self._keys(tree, node, key), usage)
            node.locks = 1
            self._tree_tokens += n - at
            self._locked_tokens += n - at
            self._added(node)
            if not (chunk and self._classic):
                self._count(node)
            self._version += 1
        running.node, running.inserted = node, max(running.inserted, n)
        allocation.committed = n

    def _finish(self, allocation: Allocation, running: Running[N]) -> None:
        """A request ends: insert what it computed, then the prompt again with a priority more, which stamps that anew
        and cuts the node that it ends in."""
        if running.tokens is None:
            return
        self._insert(allocation, running.tokens)
        end = self._whole(running.prompt)
        if self._classic or not 0 < end < allocation.committed:
            return
        tree, path = self._trees[allocation.salt], running.node.path()
        path = path[: bisect_left(path, end, key=lambda node: node.depth)]
        self._stamp(path)
        if path[-1].end > end:
            path[-1] = self._split(tree, path[-1], end - path[-1].depth)
        for node in (tree.root, *path):
            node.usage.priority = max(node.usage.priority, 1)

    def _split(self, tree: RadixTree[N], node: N, at: int) -> N:
        """Cut `node`; the upper part is returned. Both are stamped, the lower part, which nobody asked for, last."""
        upper = tree.split(node, at)
        self._recency.touch(upper.usage, hits=0)
        self._stamp((node,))
        self._version += 1
        return upper

    def _stamp(self, path: Iterable[N]) -> None:
        """Note a use of each node, the last one newest."""
        touch = self._recency.touch
        for node in path:
            touch(node.usage, 0)
            if node.usage.ticket:
                self._settle(node)

    def _counted(self, path: Sequence[N], running: Running[N], chunk: bool) -> int:
        """How many of `path` are not to be counted: those that this request has inserted before. The classic engine
        counts at every insertion, but that of a chunk."""
        if self._classic:
            return len(path) if chunk else 0
        return bisect_right(path, running.inserted, key=lambda node: node.end)

    def _count(self, node: N) -> None:
        """Count an insertion of `node`."""
        node.usage.hits += 1

    def _adopt(self, allocation: Allocation, node: N) -> bool:
        """Let the allocation use the slots of `node` instead of its own. True where `node` had none and took those."""
        self._pool.free(allocation.runs.slice(node.depth, node.end))
        allocation.runs = allocation.runs.spliced(node.depth, node.end, node.runs)
        return False

    def _added(self, node: N) -> None:
        """A new leaf hangs below its parent."""

    def _keys(self, tree: RadixTree[N], parent: N, key: Tokens) -> list[bytes]:
        """Keys of the pages in int32 [n] `key` behind `parent`, where somebody needs them."""
        return []

    # -- locks, victims and room ---------------------------------------------------------------------------------

    def _queue(self, node: N) -> Victims[N]:
        """The queue that `node` stands in, if it may be evicted."""
        return self._victims

    def _evictable(self, node: N) -> bool:
        return node.parent is not None and not node.locks and not node.children

    def _settle(self, node: N) -> None:
        """Queue `node` for eviction, or take it out."""
        if self._evictable(node):
            self._queue(node).offer(node)
        else:
            self._queue(node).withdraw(node)

    def _lock(self, path: Iterable[N]) -> None:
        for node in path:
            if not node.locks:
                self._locked_tokens += node.runs.length
                self._queue(node).withdraw(node)
            node.locks += 1

    def _unlock(self, path: Iterable[N]) -> None:
        for node in path:
            node.locks -= 1
            if not node.locks:
                self._locked_tokens -= node.runs.length
                self._settle(node)

    def _available(self) -> int:
        """Slots that are free or could be freed."""
        return self._pool.free_count + self._tree_tokens - self._locked_tokens

    def _make_room(self, need: int, by: int | None) -> None:
        """Evict so that `need` slots are free, as far as possible."""
        short = need - self._pool.free_count
        if short > 0:
            self._evict(need if self._classic else short, by)

    def _evict(self, n: int, by: int | None) -> int:
        """Evict leaves until `n` slots are freed; returns how many were."""
        freed = 0
        while freed < n and (node := self._victims.pop(0.0)) is not None:
            freed += self._evict_node(node, by)
        self._version += 1
        return freed

    def _evict_node(self, node: N, by: int | None) -> int:
        n = len(node.runs)
        self._events.record("evicted", "device", n, by, node.depth)
        self._pool.free(node.runs)
        self._tree_tokens -= n
        self._detach(node)
        return n

    def _detach(self, leaf: N) -> None:
        """Take a leaf out of its tree."""
        parent = leaf.parent
        assert parent is not None
        self._tree_of(leaf).remove(leaf)
        self._settle(parent)

    def _tree_of(self, node: N) -> RadixTree[N]:
        """The tree that `node` is in; its root is named by its salt."""
        while node.parent is not None:
            node = node.parent
        return self._trees[node.keys[0].decode()]

    def _tree(self, salt: str) -> RadixTree[N]:
        """The tree of `salt`, made if need be. Those that are empty and not in use are dropped on the way."""
        if salt not in self._trees:
            used = {allocation.salt for allocation in self._allocations.values()}
            self._trees = {name: tree for name, tree in self._trees.items() if tree.root.children or name in used}
            tree = RadixTree(self.page_size, salt.encode(), self.page_size, self._kind)
            if self._classic:
                # What is fetched to hang below the root has its priority; in the newer engine insertions raise that.
                tree.root.usage.priority = _LOWEST
            self._trees[salt] = tree
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
            self._check_allocation(allocation)
            held += allocation.runs.slice(allocation.committed, len(allocation.runs))
            for step in allocation.where.node.path():
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
                if (node in self._queue(node)) != self._evictable(node):
                    raise CacheCorruption("a node is queued for eviction although held, or the reverse")
        self._pool.check(held)
        if (tokens, locked) != (self._tree_tokens, self._locked_tokens):
            raise CacheCorruption(f"{tokens} tokens ({locked} locked) counted, {self._tree_tokens} booked")

    def _check_allocation(self, allocation: Allocation) -> None:
        if allocation.where.node.end != allocation.committed:
            raise CacheCorruption("a request's lock ends elsewhere than what it has in the tree")


class SGLangCache(SGLangTree[Node]):
    """SGLang without lower tiers."""

    def __init__(self, options: SGLangOptions, sizes: Sizes, *, classic: bool = False) -> None:
        super().__init__(options, sizes, Node, classic=classic)
        self.name = "sglang-classic" if classic else "sglang"
