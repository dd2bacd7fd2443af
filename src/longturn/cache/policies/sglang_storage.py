"""HiCache's third level: a storage without bounds below the host memory of `sglang_hicache`. For replays only.

Follows SGLang 0.5.23 (`managers/scheduler.py`, `unified_radix_cache.py`, `hybrid_cache/hybrid_cache_controller.py`)
and, classic, 0.5.16 (`hiradix_cache.py`).

- Pages are found by a chain of hashes. Those of a node enter the storage when it is copied to host memory.
- A request that arrives is matched. If the match ends at the root or at a node with a copy in host memory, the pages
  that continue it are looked up; they are fetched if they have enough tokens and host memory has room, after it was
  asked to evict as many tokens as were found. What came is a node of host memory, and is loaded at admission.
- No fetch begins while half of host memory is taken by others.
- Classic: pages are looked up as if they continued the deepest node with a copy, even where the match ends below it,
  and so are hardly ever found.

Left out: prefetch policies that depend on time (a request waits for all its pages) and repeated looks at the storage.
A real engine has no such storage here: Longturn's own policy keeps pages on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from longturn.cache.contract import Hit
from longturn.cache.pages import chain_keys
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.sglang_hicache import HiCache, HiCacheOptions
from longturn.cache.policies.sglang_node import HostNode
from longturn.cache.radix import RadixTree, Tokens, common_prefix
from longturn.cache.slots import Run, Runs
from longturn.cache.transfers import Fetch, Transfer
from longturn.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Fetching:
    """Pages on their way: they continue `anchor`, which began at token `first`, to the end of `tokens`, and have the
    addresses `host`."""

    tokens: Tokens
    salt: str
    anchor: HostNode
    first: int
    host: Runs


class StorageHiCache(HiCache):
    """HiCache with a storage. Raises ConfigError where tensors are real."""

    def __init__(self, options: HiCacheOptions, sizes: Sizes, *, classic: bool = False) -> None:
        super().__init__(options, sizes, classic=classic)
        if sizes.real:
            raise ConfigError(
                f"{self.name} has a storage in replays only: leave storage out, or serve with the policy longturn, "
                "which keeps pages on disk"
            )
        self._storage: set[bytes] = set()
        self._fetch_least = max(options.prefetch_threshold, self.page_size)
        self._fetching: dict[Fetch, Fetching] = {}

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        hit, known = super().lookup(tokens, salt), self._fetching.values()
        if any(each.salt == salt and common_prefix(each.tokens, tokens) > hit.where.matched for each in known):
            return replace(hit, arriving=True)
        return hit

    def prefetch(self, hit: Hit) -> Fetch | None:
        path = self._path(hit)
        self._stamp(path)
        tree = self._tree(hit.salt)
        anchor = path[-1] if path else tree.root
        span = hit.tokens[anchor.end : self._whole(len(hit.tokens) - 1)]
        while self._classic and anchor.parent is not None and not anchor.host:
            anchor = anchor.parent
        taken = sum(len(fetching.host) for fetching in self._fetching.values())
        if (
            (anchor.parent is not None and not anchor.host)
            or len(span) < self._fetch_least
            or 2 * taken >= self._host.capacity
        ):
            return None
        keys = chain_keys(tree.key_before(anchor, anchor.end), span, self.page_size)
        n = next((i for i, key in enumerate(keys) if key not in self._storage), len(keys)) * self.page_size
        host = self._reserve(anchor, n) if n >= self._fetch_least else None
        if host is None:
            return None
        fetch = Fetch(keys[: len(host) // self.page_size])
        tokens = np.concatenate((hit.tokens[: anchor.end], span[: len(host)]))
        self._fetching[fetch] = Fetching(tokens, hit.salt, anchor, anchor.depth, host)
        return fetch

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        if isinstance(transfer, Fetch):
            self._fetched(self._fetching.pop(transfer), n_pages * self.page_size)
            self._events.record("fetched", "disk", n_pages * self.page_size)
        else:
            super().landed(transfer, n_pages)

    def _reserve(self, anchor: HostNode, n: int) -> Runs | None:
        """Room in host memory for `n` tokens, or for as many as are worth a fetch; `anchor` is held meanwhile."""
        self._hold(anchor, anchor.depth, 1)
        if self._host.free_count < n:
            self._evict_host(n)
        n = min(n, self._host.free_count)
        host = self._host.allocate(n) if n >= self._fetch_least else None
        if host is None:
            self._hold(anchor, anchor.depth, -1)
        return host

    def _hold(self, anchor: HostNode, first: int, times: int) -> None:
        """Keep the copy of `anchor`, which began at `first` when it was first held, or let go of it."""
        for node in anchor.path():
            if node.depth >= first:
                node.held += times
                self._settle(node)

    def _fetched(self, fetching: Fetching, n: int) -> None:
        """Hang what has come, the first `n` tokens, below the anchor, if that is there still."""
        tree, node, host = self._tree(fetching.salt), fetching.anchor, fetching.host
        first, end = node.end, node.end + n
        self._version += 1
        if node is not tree.root and node.parent is None:
            self._host.free(host)
            return
        self._hold(node, fetching.first, -1)
        self._stamp((node,))
        at, key = first, fetching.tokens[:end]
        while (found := tree.step(node, key, at)) is not None:
            node, shared = found
            self._stamp((node,))
            if shared < len(node.tokens):
                node = self._split(tree, node, shared)
            at += shared
        self._host.free(host.slice(0, at - first))
        self._host.free(host.slice(n, len(host)))
        if at < end:
            usage = self._recency.fresh(at, end - at)
            usage.hits, usage.priority = 0, node.usage.priority
            keys = chain_keys(tree.key_before(node, at), key[at:], self.page_size)
            new = tree.add(node, key[at:].copy(), Runs(), keys, usage)
            new.host, new.fetched = host.slice(at - first, n), True
            self._settle(new)
            self._settle(node)

    def _keys(self, tree: RadixTree[HostNode], parent: HostNode, key: Tokens) -> list[bytes]:
        return chain_keys(tree.key_before(parent, parent.end), key[parent.end :], self.page_size)

    def _back_up(self, node: HostNode) -> bool:
        backed = super()._back_up(node)
        if backed:
            self._storage.update(node.keys)
        return backed

    def _reserved(self) -> list[Run]:
        return [run for fetching in self._fetching.values() for run in fetching.host]
