"""Longturn's own policy: a radix tree over the device, page chains below it, reuse to the token.

Device: one radix tree per salt. Prompts are findable after every prefill chunk, answers as they grow. Leaves are
evicted from their tail, page by page and only as much as is missing, so that one long conversation does not lose all
of its history to a short request. Host and disk hold whole pages under their content keys; a page that matches in part
is copied up and its matching tokens are used.

Write policies: `write_through` saves each page below as soon as it is complete; `write_through_selective` on its
second use; `write_back` when the device evicts it (to host; to disk when host evicts it).

Borrowed: radix tree and leaf eviction from SGLang (RadixAttention, Zheng et al. 2024), the three write policies from
its HiCache, eviction of a leaf's tail from TGI's radix trie, content keys as a hash chain from vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from longturn.cache.contract import Allocation, CacheState, Hit, TierState
from longturn.cache.device import DeviceTier
from longturn.cache.events import Event, EventLog
from longturn.cache.eviction import DEAD, EXPECTED, NORMAL, PINNED, Recency, Usage, Victims, order
from longturn.cache.hints import Hint
from longturn.cache.lower import LowerTiers, PageHit, PageRef
from longturn.cache.pages import chain_keys
from longturn.cache.radix import Node, RadixTree, Tokens
from longturn.cache.slots import GROWTH, Pool, Runs, SlotPool
from longturn.cache.transfers import Drop, Fetch, Load, Transfer
from longturn.errors import ConfigError
from longturn.store.contract import PageStore

WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
_PROTECTION = {"pin": PINNED, "expect": EXPECTED, "release": DEAD, "supersede": DEAD}


@dataclass(frozen=True)
class LongturnOptions:
    """What a user can set.

    device_tokens, host_pages: capacities; page_size: tokens in a page; eviction: an order of `cache.eviction`;
    reuse_multiple: reuse only whole multiples of so many tokens (deterministic mode); linear_flops and
    attention_flops: cost of computing a token, and of its attention to one earlier token, for the order `cost`.
    """

    device_tokens: int
    host_pages: int = 0
    page_size: int = 16
    eviction: str = "lru"
    write_policy: str = "write_through"
    fingerprint: str = ""
    reuse_multiple: int = 1
    linear_flops: float = 1.0
    attention_flops: float = 0.0

    def __post_init__(self) -> None:
        if self.write_policy not in WRITE_POLICIES:
            raise ConfigError(f"no write policy {self.write_policy!r}: choose one of {', '.join(WRITE_POLICIES)}")
        if self.device_tokens < 1 or self.page_size < 1 or self.host_pages < 0 or self.reuse_multiple < 1:
            raise ConfigError("cache sizes must be positive: give the device at least one token and pages one token")


@dataclass(frozen=True)
class _Place:
    """Where a hit was found: its device part ends in `node`, `pages` continue it."""

    node: Node
    pages: list[PageHit]
    version: int


class LongturnCache:
    """See the module's text. `disk` is only asked what it contains; the engine moves the bytes."""

    def __init__(
        self,
        options: LongturnOptions,
        disk: PageStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        pool: Pool | None = None,
    ) -> None:
        self.options = options
        self._page_size = options.page_size
        self._clock = clock
        self.longest, self.page_size = options.device_tokens, options.page_size
        self.chunk_tokens: int | None = None
        self.overlap = False
        self._recency = Recency(options.linear_flops, options.attention_flops)
        self._events = EventLog(clock)
        key = order(options.eviction)
        self._lower = LowerTiers(
            options.host_pages,
            disk,
            options.page_size,
            key,
            self._recency,
            self._events,
            disk_after_host=options.write_policy == "write_back",
            clock=clock,
        )
        self._device = DeviceTier(
            pool or SlotPool(options.device_tokens),
            self._lower,
            Victims(key, self._recency),
            self._events,
            clock,
            page_size=options.page_size,
            fingerprint=options.fingerprint,
            write_back=options.write_policy == "write_back",
        )
        self._allocations: dict[int, Allocation] = {}
        self._next_id = 0

    # -- finding -------------------------------------------------------------------------------------------------

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        tree = self._device.tree(salt)
        node, device = tree.match(tokens[: max(len(tokens) - 1, 0)])
        pages = self._lower.match(tokens, device, tree.key_before(node, device))
        if self.options.reuse_multiple > 1:
            total = device + sum(page.gained for page in pages)
            total -= total % self.options.reuse_multiple
            pages = _cut(pages, total - device)
            device = min(device, total)
            while node.parent is not None and node.depth >= device:
                node = node.parent
        return Hit(
            tokens,
            salt,
            device=device,
            host=sum(page.gained for page in pages if page.tier == "host"),
            disk=sum(page.gained for page in pages if page.tier == "disk"),
            arriving=any(page.arriving for page in pages),
            where=_Place(node, pages, self._device.version),
        )

    def prefetch(self, hit: Hit) -> Fetch | None:
        place: _Place = hit.where
        if not hit.disk:
            return None
        tree = self._device.tree(hit.salt)
        parents = [tree.key_before(place.node, hit.device), *(page.key for page in place.pages)]
        first = hit.device // self._page_size
        refs = [PageRef(page.key, parents[i], first + i) for i, page in enumerate(place.pages)]
        fetch = self._lower.fetch(refs, hit.tokens)
        self._device.version += 1
        return fetch

    # -- the life of an allocation -------------------------------------------------------------------------------

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        if hit.where.version != self._device.version:
            hit = self.lookup(hit.tokens, hit.salt)
        place: _Place = hit.where
        tree = self._device.tree_to_grow(hit.salt, self._allocations.values())
        node = place.node if place.node.parent is not None else tree.root
        if hit.device < node.end:
            node = self._device.split(tree, node, hit.device - node.depth)
        held = self._lower.lock([page.key for page in place.pages])
        path = node.path()
        for step in path:
            self._device.lock(step)
        runs = Runs(run for step in path for run in step.runs)
        room = self._device.room(len(hit.tokens) - len(runs) + min(output, GROWTH), runs.end, self._next_id + 1)
        if room is None:
            self._device.unlock(path)
            self._lower.unlock(held)
            return None
        runs.extend(room)
        self._next_id += 1
        allocation = Allocation(
            self._next_id,
            hit.salt,
            runs,
            {"device": hit.device, "host": hit.host, "disk": hit.disk},
            hit.device,
            len(hit.tokens) + output,
            where=node,
            pages=hit.device // self._page_size,
            last_key=tree.key_before(node, hit.device),
        )
        self._allocations[allocation.id] = allocation
        for step in path:
            self._recency.touch(step.usage, by=allocation.id)
        for tier, n in allocation.cached.items():
            self._events.record("hit", tier, n, allocation.id)
        self._load(allocation, place.pages)
        self._lower.unlock(held)
        self._reuse(tree, path, allocation)
        return allocation

    def _load(self, allocation: Allocation, pages: list[PageHit]) -> None:
        """List the loads of the pages of a hit, one for each stretch that lies in one store."""
        stretches: list[tuple[str, list[PageHit]]] = []
        for page in pages:
            store = self._lower.kept_in(page.key) or page.tier
            if not stretches or stretches[-1][0] != store:
                stretches.append((store, []))
            stretches[-1][1].append(page)
        first = allocation.committed
        for store, stretch in stretches:
            n = sum(page.gained for page in stretch)
            keys = [page.key for page in stretch]
            runs = allocation.runs.slice(first, first + n)
            self._lower.transfers.append(Load(keys, store, runs, first % self._page_size, first, allocation))
            self._lower.touch(keys, allocation.id)
            first += n

    def _reuse(self, tree: RadixTree[Node], path: list[Node], allocation: Allocation) -> None:
        """A second use of device pages: keep their copies below fresh; the selective policy makes them now."""
        if not self._lower.exist:
            return
        keys = [key for node in path for key in node.keys]
        absent = set(self._lower.touch(keys, allocation.id))
        if absent and self.options.write_policy == "write_through_selective":
            tokens = np.concatenate([node.tokens for node in path])
            parents = [tree.root.keys[0], *keys]
            refs = [PageRef(key, parents[i], i) for i, key in enumerate(keys) if key in absent]
            self._lower.save(refs, tokens, allocation.runs, allocation.id, allocation.id)

    def extend(self, allocation: Allocation, length: int) -> bool:
        missing = length - len(allocation.runs)
        if missing <= 0:
            return True
        spare = max(min(missing + GROWTH - 1, allocation.limit - len(allocation.runs)), missing)
        room = self._device.room(spare, allocation.runs.end, allocation.id)
        room = self._device.room(missing, allocation.runs.end, allocation.id) if room is None else room
        if room is None:
            return False
        allocation.runs.extend(room)
        return True

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        n, at = len(tokens), allocation.committed
        if n <= at:
            return
        tree, size = self._device.tree(allocation.salt), self._page_size
        node: Node = allocation.where
        keys = chain_keys(allocation.last_key, tokens[allocation.pages * size :], size) if self._lower.exist else []
        while (found := tree.step(node, tokens, at)) is not None:
            child, shared = found
            if shared < len(child.tokens):
                child = self._device.split(tree, child, shared)
            self._device.pool.free(allocation.runs.slice(at, at + shared))
            allocation.runs = allocation.runs.spliced(at, at + shared, child.runs)
            self._device.lock(child)
            self._recency.touch(child.usage, by=allocation.id)
            node, at = child, at + shared
        if at < n:
            own_keys, runs = keys[at // size - allocation.pages :], allocation.runs.slice(at, n)
            if node.parent is not None and node.locks == 1 and not node.children and node.usage.protection == NORMAL:
                node.tokens = np.concatenate((node.tokens, tokens[at:]))
                node.runs.extend(runs)
                node.keys.extend(own_keys)
                self._recency.touch(node.usage, hits=0, by=allocation.id)
            else:
                usage = self._recency.fresh(at, n - at, allocation.id)
                node = tree.add(node, tokens[at:].copy(), runs, own_keys, usage)
                node.locks = 1
            self._device.grew(n - at)
        allocation.where, allocation.committed = node, n
        self._device.version += 1
        if keys:
            parents, first = [allocation.last_key, *keys], allocation.pages
            allocation.pages, allocation.last_key = first + len(keys), keys[-1]
            if self.options.write_policy == "write_through":
                refs = [PageRef(key, parents[i], first + i) for i, key in enumerate(keys)]
                self._lower.save(refs, tokens, allocation.runs, allocation.id, allocation.id)

    def release(self, allocation: Allocation) -> None:
        del self._allocations[allocation.id]
        self._device.pool.free(allocation.runs.slice(allocation.committed, len(allocation.runs)))
        self._device.unlock(allocation.where.path())

    # -- transfers, signals, pictures, checks --------------------------------------------------------------------

    def take_transfers(self) -> list[Transfer]:
        transfers, self._lower.transfers = self._lower.transfers, []
        return transfers

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        lost = transfer.keys[n_pages:]
        if isinstance(transfer, Fetch):
            self._lower.fetched(transfer, n_pages)
        elif isinstance(transfer, Load) and not lost:
            self._events.record("loaded", transfer.tier, len(transfer.runs), transfer.allocation.id, transfer.first)
        elif isinstance(transfer, Load):
            first_lost = transfer.first - transfer.skip + n_pages * self._page_size
            self._truncate(transfer.allocation, max(first_lost, transfer.first))
            self._events.record(
                "failed", transfer.tier, len(lost) * self._page_size, transfer.allocation.id, first_lost
            )
        if lost and not isinstance(transfer, Drop):
            self._lower.lose(lost)
        self._device.version += 1

    def _truncate(self, allocation: Allocation, first_lost: int) -> None:
        """A load failed: what lies behind it must be computed after all.

        Down to a reusable multiple, which may reach into the device's part: that is computed anew, in place, to the
        same bits.
        """
        excess = allocation.reused - (first_lost - first_lost % self.options.reuse_multiple)
        for tier in ("disk", "host", "device"):
            back = min(max(excess, 0), allocation.cached[tier])
            allocation.cached[tier] -= back
            excess -= back

    def hint(self, hint: Hint) -> int:
        tree = self._device.tree(hint.salt)
        stop = len(hint.tokens) if hint.stop is None else min(hint.stop, len(hint.tokens))
        if stop <= hint.start:
            return 0
        node, matched = tree.match(hint.tokens[:stop])
        if matched < node.end:
            node = self._device.split(tree, node, matched - node.depth)
        steps = [step for step in node.path() if step.end > hint.start]
        dead = _PROTECTION.get(hint.kind) == DEAD
        key = tree.key_before(node, matched)
        pages = self._lower.held(hint.tokens[:stop], matched, key, hint.start, below=dead)
        reached = len(pages) * self._page_size
        if dead:
            if steps and steps[0].depth < hint.start:
                self._device.split(tree, steps[0], hint.start - steps[0].depth)
            # Whatever follows a dead range can only be reached through it.
            if matched == stop:
                steps += tree.nodes(below=node)
        for step in steps:
            reached += len(step.tokens)
            pages += [page for key in step.keys if (page := self._lower.table.get(key)) is not None]
            self._mark(step.usage, hint)
            self._device.settle(step)
        for page in pages:
            self._mark(page.usage, hint)
            self._lower.table.settle(page)
        return reached

    def _mark(self, usage: Usage, hint: Hint) -> None:
        if hint.kind == "priority":
            usage.priority = max(usage.priority, hint.level)
        else:
            protection, until = _PROTECTION[hint.kind], self._clock() + hint.seconds
            if usage.protection == protection:
                # What one conversation needs for a minute another may need for an hour.
                until = max(until, usage.until)
            usage.protection, usage.until = protection, until

    def clear(self, tier: str) -> int:
        if tier == "device":
            freed = self._device.evict(self.options.device_tokens, None)
        elif tier == "host":
            before = len(self._lower.table)
            self._lower.make_room(self._lower.table.capacity)
            freed = (before - len(self._lower.table)) * self._page_size
        elif tier == "disk" and self._lower.disk is not None:
            freed = self._lower.disk.clear() * self._page_size
        else:
            raise ConfigError(f"there is no tier called {tier!r} here: the cache's state lists its tiers")
        self._events.record("cleared", tier, freed)
        self._device.version += 1
        return freed

    def state(self) -> CacheState:
        size, table, disk = self._page_size, self._lower.table, self._lower.disk
        device, capacity = self._device, self._device.pool.capacity
        evictable = device.tokens - device.locked_tokens
        tiers = [TierState("device", capacity, capacity - device.pool.free_count, evictable)]
        if table.capacity:
            tiers.append(TierState("host", table.capacity * size, len(table) * size, len(table.victims) * size))
        if disk is not None:
            stats = disk.stats()
            tiers.append(TierState("disk", stats.capacity_bytes // disk.page_bytes * size, stats.pages * size))
        nodes = sorted(device.nodes(), key=lambda node: (node.usage.hits, node.end), reverse=True)
        return CacheState("longturn", tiers, [(node.end, node.usage.hits, node.locks) for node in nodes[:20]])

    def events(self) -> list[Event]:
        return self._events.take()

    def check_integrity(self) -> None:
        self._device.check(self._allocations.values())
        self._lower.table.check()


def _cut(pages: list[PageHit], tokens: int) -> list[PageHit]:
    """The leading pages that bring `tokens` tokens in all, the last one perhaps in part."""
    out = []
    for page in pages:
        if tokens <= 0:
            break
        out.append(page._replace(gained=min(page.gained, tokens)))
        tokens -= page.gained
    return out
