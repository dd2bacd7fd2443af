"""SGLang's HiCache: the radix tree of `sglang`, whose nodes lie on the device, in host memory, or in both.

Follows SGLang 0.5.23 (`unified_cache/unified_tree_core.py`, `unified_cache/components/full.py`,
`unified_radix_cache.py`, `managers/scheduler.py`); the classic variant follows 0.5.16 (`hiradix_cache.py`).

- `write_through` copies a node to host memory when it is first inserted, `write_through_selective` at its second
  insertion, after those of its ancestors that have no copy. `write_back` copies it when the device evicts it.
- The device evicts unlocked nodes without children on the device: those with a copy stay, host-only. Host memory evicts
  host-only leaves. Under write-back the copies of nodes that are on the device too are given up before.
- The host-only part of a match is loaded whole when a request is admitted, if it has at least ten tokens.
- Classic: a node is copied only if its parent has a copy; room in host memory is made for the whole node. Under
  write-back copies of nodes that are on the device are kept, and what an eviction has copied may not be dropped again
  before a node finds no room.

The storage below host memory is `sglang_storage`'s. Left out: host memory that is only a buffer for the storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.eviction import Victims
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.options import choice, tokens
from longturn.cache.policies.sglang import Place, Running, SGLangOptions, SGLangTree
from longturn.cache.policies.sglang_node import HostNode, PageNames
from longturn.cache.radix import RadixTree, Tokens
from longturn.cache.slots import CountingPool, Run, Runs
from longturn.cache.transfers import Drop, Load, Save, Transfer
from longturn.errors import CacheCorruption

# Fewer host-only tokens are computed rather than loaded.
_LOAD_BACK = 10


@dataclass(frozen=True)
class HiCacheOptions(SGLangOptions):
    """What HiCache lets users set beside that (`--hicache-write-policy`, `--hicache-storage-backend`, ...)."""

    write_policy: Literal["write_through", "write_through_selective", "write_back"] = choice(
        "write_through", "when nodes are copied to host memory"
    )
    storage: Literal["none", "unlimited"] = choice("none", "a store below host memory, in replays only")
    prefetch_threshold: int = tokens(256, "fewest tokens that are fetched from the storage")


class HiCache(SGLangTree[HostNode]):
    """SGLang with host memory and, in replays, a storage below it."""

    def __init__(self, options: HiCacheOptions, sizes: Sizes, *, classic: bool = False) -> None:
        super().__init__(options, sizes, HostNode, classic=classic)
        self.name = "sglang-hicache-classic" if classic else "sglang-hicache"
        self._write_back = options.write_policy == "write_back"
        self._threshold = 2 if options.write_policy == "write_through_selective" else 1
        self._load_back = -(-_LOAD_BACK // sizes.unit)
        self._host = CountingPool(sizes.host // self.page_size * self.page_size)
        self._host_victims: Victims[HostNode] = Victims(self._order, self._recency)
        # Nodes in both places, in the order they came to be so. Some have left one of them since.
        self._duplicates: dict[HostNode, None] = {}
        # By allocation: first and last token of what was loaded for it and is not yet used.
        self._loads: dict[int, tuple[int, int]] = {}
        self._landing: set[int] = set()
        self._staged: list[HostNode] = []

    # -- the life of a request -----------------------------------------------------------------------------------

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        node, matched = self._find(tokens, salt)
        device, fetched, step = matched, 0, node
        arriving = False
        while step is not None and step.parent is not None and not step.runs:
            arriving |= step.held > 0 and bool(self._landing)
            fetched += device - step.depth if step.fetched else 0
            device, step = step.depth, step.parent
        loaded = matched - device
        if loaded < self._load_back:
            loaded = fetched = 0
        where = Place(node, matched, self._version)
        return Hit(tokens, salt, device, loaded - fetched, fetched, arriving, where)

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        path = self._path(hit)
        n = next((i for i, node in enumerate(path) if not node.runs), len(path))
        allocation = self._start(hit, output, path[:n])
        if allocation is not None:
            self._stamp(path[n:])
            self._load(allocation, path[n:])
            for node in path[n:]:
                node.fetched = False
        return allocation

    def _load(self, allocation: Allocation, below: list[HostNode]) -> None:
        """Bring the host-only nodes that end a match to the device, all or none of them."""
        n = sum(len(node.tokens) for node in below)
        if n < self._load_back:
            return
        self._lock(below)
        self._make_room(n, allocation.id)
        runs = self._pool.allocate(n, allocation.runs.end)
        if runs is None:
            self._unlock(below)
            return
        for node in below:
            node.held += 1
            node.usage.priority = max(node.usage.priority, 0)
        first, fetched = allocation.committed, sum(len(node.tokens) for node in below if node.fetched)
        host = Runs(run for node in below for run in node.host)
        self._transfers.append(Load(PageNames(host, self.page_size), "host", runs, 0, first, allocation))
        allocation.runs.extend(runs)
        allocation.where.node = below[-1]
        self._loads[allocation.id] = first, first + n
        self._landing.add(allocation.id)
        for tier, hit in (("host", n - fetched), ("disk", fetched)):
            allocation.cached[tier] = hit
            self._events.record("hit", tier, hit, allocation.id)

    def _insert(self, allocation: Allocation, tokens: Tokens, *, chunk: bool = False) -> None:
        super()._insert(allocation, tokens, chunk=chunk)
        self._end_load(allocation)

    def _finish(self, allocation: Allocation, running: Running[HostNode]) -> None:
        super()._finish(allocation, running)
        self._end_load(allocation)
        self._landing.discard(allocation.id)

    def _end_load(self, allocation: Allocation) -> None:
        """What was loaded has been used: its copies in host memory may be given up."""
        first, stop = self._loads.pop(allocation.id, (0, 0))
        if first < stop:
            for node in reversed(allocation.where.node.path()):
                if first <= node.depth and node.end <= stop:
                    node.held -= 1
                    self._track(node)

    # -- inserting -----------------------------------------------------------------------------------------------

    def _split(self, tree: RadixTree[HostNode], node: HostNode, at: int) -> HostNode:
        n, host = len(node.tokens), node.host
        upper = super()._split(tree, node, at)
        if host:
            upper.host, node.host = host.slice(0, at), host.slice(at, n)
        upper.held, upper.fetched, upper.below = node.held, node.fetched, int(bool(node.runs))
        self._track(upper)
        return upper

    def _adopt(self, allocation: Allocation, node: HostNode) -> bool:
        if node.runs:
            return super()._adopt(allocation, node)
        node.runs = allocation.runs.slice(node.depth, node.end)
        self._tree_tokens += len(node.runs)
        self._locked_tokens += len(node.runs)
        self._added(node)
        self._track(node)
        return True

    def _added(self, node: HostNode) -> None:
        assert node.parent is not None
        node.parent.below += 1

    def _count(self, node: HostNode) -> None:
        if self._write_back:
            return
        super()._count(node)
        if node.usage.hits >= self._threshold and not node.host:
            self._write_through(node)

    def _write_through(self, node: HostNode) -> None:
        """Copy `node` to host memory, and before it those of its ancestors that have no copy."""
        chain = [node]
        while (parent := chain[-1].parent) is not None and parent.parent is not None and not parent.host:
            chain.append(parent)
        if self._classic and len(chain) > 1:
            return
        for step in reversed(chain):
            if not self._back_up(step):
                break

    # -- eviction ------------------------------------------------------------------------------------------------

    def _queue(self, node: HostNode) -> Victims[HostNode]:
        return self._victims if node.runs.length else self._host_victims

    def _evictable(self, node: HostNode) -> bool:
        if node.parent is None or node.locks:
            return False
        if node.runs.length:
            return not node.below
        return bool(node.host) and not node.children and not node.held

    def _evict(self, n: int, by: int | None) -> int:
        freed = super()._evict(n, by)
        self._let_go()
        return freed

    def _evict_node(self, node: HostNode, by: int | None) -> int:
        if self._write_back and not node.host:
            if not self._back_up(node):
                self._let_go()
            elif self._classic:
                node.held += 1
                self._staged.append(node)
            else:
                self._track(node)
        n, parent = len(node.runs), node.parent
        assert parent is not None
        self._events.record("evicted", "device", n, by, node.depth, "host" if node.host else None)
        self._pool.free(node.runs)
        self._tree_tokens -= n
        node.runs = Runs()
        parent.below -= 1
        if node.host:
            self._settle(node)
            self._settle(parent)
        else:
            self._drop(node)
        return n

    def _let_go(self) -> None:
        """Host memory may evict again what was copied in this eviction."""
        for node in self._staged:
            node.held -= 1
            self._settle(node)
        self._staged.clear()

    def _back_up(self, node: HostNode) -> bool:
        """Copy a node on the device to host memory, if that has room."""
        self._make_host_room(len(node.runs))
        host = self._host.allocate(len(node.runs))
        if host is None:
            return False
        node.host = host
        self._transfers.append(Save(PageNames(host, self.page_size), node.runs, ("host",)))
        self._events.record("stored", "host", len(host), None, node.depth)
        return True

    def _make_host_room(self, n: int) -> None:
        short = n - self._host.free_count
        if short > 0:
            self._evict_host(n if self._classic else short)

    def _evict_host(self, n: int) -> None:
        """Free `n` tokens of host memory, or all that can be freed."""
        freed = self._release_duplicates(n)
        while freed < n and (node := self._host_victims.pop(0.0)) is not None:
            freed += len(node.host)
            self._events.record("evicted", "host", len(node.host), None, node.depth)
            self._drop(node)
        self._version += 1

    def _release_duplicates(self, n: int) -> int:
        """Under write-back, give up copies of nodes that are on the device, until `n` tokens are freed.

        First those that the device cannot evict soon, then all, oldest first. Returns the tokens freed.
        """
        freed, gone = 0, []
        for spare in (True, False):
            for node in self._duplicates:
                if freed >= n:
                    break
                if not node.runs or not node.host:
                    gone.append(node)
                elif not node.held and not (spare and self._evictable(node)):
                    freed += len(node.host)
                    self._drop_copy(node)
                    gone.append(node)
        for node in gone:
            self._duplicates.pop(node, None)
        return freed

    def _track(self, node: HostNode) -> None:
        """Remember a node that is in both places, where copies of such are given up."""
        if self._write_back and not self._classic and node.runs and node.host and not node.held:
            self._duplicates.setdefault(node)

    def _drop(self, node: HostNode) -> None:
        """Take out a node that is not on the device, with all that hangs below it."""
        for step in [node, *self._tree_of(node).nodes(node)][::-1]:
            self._host_victims.withdraw(step)
            self._drop_copy(step)
            self._duplicates.pop(step, None)
            self._detach(step)
            step.parent = None

    def _drop_copy(self, node: HostNode) -> None:
        if node.host:
            self._host.free(node.host)
            self._transfers.append(Drop(PageNames(node.host, self.page_size)))
            node.host = Runs()

    # -- transfers -----------------------------------------------------------------------------------------------

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        if isinstance(transfer, Load):
            self._loaded(transfer, n_pages * self.page_size)
        super().landed(transfer, n_pages)

    def _loaded(self, load: Load, n: int) -> None:
        """The first `n` tokens of a load lie in the slots of its request: they are on the device now."""
        allocation, stop = load.allocation, load.first + n
        self._landing.discard(allocation.id)
        if allocation.id not in self._allocations:
            return
        for node in allocation.where.node.path():
            if load.first <= node.depth < stop:
                if node.end > stop:
                    node = self._split(self._trees[allocation.salt], node, stop - node.depth)
                self._adopt(allocation, node)
                allocation.committed = node.end
        self._version += 1

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        names = transfer.keys[n_pages:]
        if not isinstance(names, PageNames) or isinstance(transfer, Drop):
            return
        if isinstance(transfer, Load):
            cached, excess = transfer.allocation.cached, len(names.runs)
            for tier in ("disk", "host"):
                back = min(excess, cached.get(tier, 0))
                cached[tier], excess = cached.get(tier, 0) - back, excess - back
        self._events.record("failed", "host", len(names.runs))
        lost = set(names.addresses())
        for tree in self._trees.values():
            for node in list(tree.nodes()):
                if not lost.isdisjoint(PageNames(node.host, self.page_size).addresses()):
                    self._forget(node)
        self._version += 1

    def _forget(self, node: HostNode) -> None:
        """The copy of `node` cannot be read: where it is the only one, the node goes, and requests that wait for it
        compute what it held."""
        if node.runs:
            self._drop_copy(node)
            return
        for allocation in self._allocations.values():
            running: Running[HostNode] = allocation.where
            if node in running.node.path():
                assert node.parent is not None
                running.node = node.parent
                first, stop = self._loads[allocation.id]
                self._loads[allocation.id] = first, min(stop, node.depth)
        self._drop(node)

    # -- pictures and checks -------------------------------------------------------------------------------------

    def _clear(self, tier: str) -> int:
        if tier == "device":
            return super()._clear(tier)
        before = self._host.free_count
        for node in [node for tree in self._trees.values() for node in tree.nodes()]:
            if node.runs and not node.locks and not node.held:
                self._drop_copy(node)
        self._evict_host(self._host.capacity)
        return self._host.free_count - before

    def _tiers(self) -> list[TierState]:
        tiers, capacity = super()._tiers(), self._host.capacity
        if capacity:
            nodes = (node for tree in self._trees.values() for node in tree.nodes())
            evictable = sum(len(node.host) for node in nodes if not node.locks and not node.held)
            tiers.append(TierState("host", capacity, capacity - self._host.free_count, evictable))
        return tiers

    def check_integrity(self) -> None:
        super().check_integrity()
        nodes = [node for tree in self._trees.values() for node in tree.nodes()]
        self._host.check(self._reserved() + [run for node in nodes for run in node.host])
        for node in nodes:
            if node.below != sum(bool(child.runs) for child in node.children.values()):
                raise CacheCorruption(f"{node.below} children are counted on the device, wrongly")
            if node.below and not node.runs:
                raise CacheCorruption("a node is on the device and the node above it is not")
            if node.held and not node.host:
                raise CacheCorruption("a copy that a load or fetch needs was given up")
        if not self._duplicates.keys() <= set(nodes):
            raise CacheCorruption("a node that is gone is remembered as lying in two places")
        if not self._landing <= self._allocations.keys() or not self._loads.keys() <= self._allocations.keys():
            raise CacheCorruption("a load is remembered whose request is gone")

    def _check_allocation(self, allocation: Allocation) -> None:
        if allocation.id not in self._landing:
            super()._check_allocation(allocation)

    def _reserved(self) -> list[Run]:
        """Addresses of host memory that no node has yet."""
        return []
