"""LightLLM: a radix tree to the token that requests enter when they end, over a host tier of whole prompt pages.

Follows ModelTC/LightLLM of August 2026 (commit 87881ae7): `server/router/dynamic_prompt/radix_cache.py`,
`model_infer/infer_batch.py`, `mode_backend/multi_level_kv_cache.py` and `multi_level_kv_cache/cpu_cache_client.py`.

- A prompt is matched once, up to its last token but one. Where it ends inside a node it cuts it; the path is stamped
  deepest first, so that ancestors are newer, and the dead lower part of a cut keeps its old stamp: it goes first.
- Slots are taken chunk by chunk and token by token. Victims are unlocked leaves, whole, until the shortfall is freed.
- Prompt and answer enter the tree when the request ends, pauses or is cancelled. In replays that is with the last token
  of the answer, whose step the engine has launched before it sees the end; a real engine here never computes it.
- Host pages hold prompts only. They are copied there at the end of each request, and brought back when that gains 128
  tokens over the device. Their order is that of the last match or copy, page by page, with no regard to prefixes.
- Cached are tokens that were reused. LightLLM's own usage also counts host pages that matched but were not loaded.

The router admits by a predicted peak of all running requests; here, where many run at once, a prompt waits until the
slots suffice for it and for the prompts that run. Left out: the disk tier, diverse mode, linear attention, merging.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from longturn.cache.blocks import NO_KEYS, PrefixKeys, key_bytes
from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.finished import FinishedTrees, Place, Running
from longturn.cache.policies.lightllm_host import HostPages
from longturn.cache.policies.options import tokens
from longturn.cache.radix import Node, RadixTree, Tokens
from longturn.cache.slots import Runs
from longturn.cache.transfers import Drop, Load, Save, Transfer
from longturn.errors import ConfigError

# Host pages are loaded when they gain so many tokens, for prompts of at least so many.
_GAIN, _PROMPT = 128, 256


@dataclass(frozen=True)
class LightLLMOptions:
    """What a user can set."""

    chunked_prefill_size: int = tokens(8192, "most tokens of a prompt in one step (--chunked_prefill_size)")
    host_page_size: int = tokens(256, "tokens in a page of the host tier (--cpu_cache_token_page_size)")


@dataclass(frozen=True)
class _Found(Place):
    """A place on the device, the host pages of the prompt, and how many leading ones of them are there."""

    keys: list[bytes]
    n_pages: int


@dataclass(eq=False)
class _Running(Running):
    """A running request with the keys of its prompt's pages, and the load under way for it."""

    keys: list[bytes] = field(default_factory=list)
    loading: Load | None = None


class LightLLMCache(FinishedTrees):
    """See the module's text."""

    name = "lightllm"
    _running = _Running

    def __init__(self, options: LightLLMOptions, sizes: Sizes) -> None:
        super().__init__(sizes, sizes.device, 1, lambda usage: usage.stamp)
        if options.chunked_prefill_size < 1 or options.host_page_size < 1:
            raise ConfigError("lightllm:chunked_prefill_size and host_page_size must be positive")
        self.longest = sizes.device - 1
        self.chunk_tokens = options.chunked_prefill_size
        self.overlap = not sizes.real
        self._host: HostPages | None = None
        if n_pages := sizes.host // options.host_page_size:
            self.page_size = options.host_page_size
            self._host = HostPages(n_pages)
            self._keys = PrefixKeys(self.page_size)
        self._gain, self._prompt = (-(-n // sizes.unit) for n in (_GAIN, _PROMPT))

    # -- the life of a request -----------------------------------------------------------------------------------

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        key = tokens[: max(len(tokens) - 1, 0)]
        place, keys, n_pages = self._find(key, salt), [], 0
        if self._host is not None:
            keys = key_bytes(self._keys.extend(NO_KEYS, key, salt))
            n_pages = self._host.match(keys)
        device, gained = place.matched, n_pages * self.page_size - place.matched
        loads = gained >= self._gain and len(tokens) >= self._prompt and gained <= self._beside(place)
        found = _Found(place.node, device, place.version, keys, n_pages)
        return Hit(tokens, salt, device=device, host=gained if loads else 0, where=found)

    def _beside(self, place: Place) -> int:
        """Slots that are free or could be freed once a match is locked."""
        node, idle = place.node, 0
        while node is not None and node.parent is not None and not node.locks:
            idle += min(node.end, place.matched) - node.depth
            node = node.parent
        return self._available() - idle

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        if hit.where.version != self._version:
            hit = self.lookup(hit.tokens, hit.salt)
        found: _Found = hit.where
        awaited = sum(max(other.where.prompt - len(other.runs), 0) for other in self._allocations.values())
        if len(hit.tokens) - hit.device + awaited > self._beside(found):
            return None
        path = self._path(found, cut=True)
        self._stamp(path)
        self._lock(path)
        allocation = self._start(hit, path, {"device": hit.device, "host": hit.host}, output)
        if self._host is not None:
            running: _Running = allocation.where
            running.keys, matched = found.keys, found.n_pages * self.page_size
            self._host.touch(found.keys[: found.n_pages])
            if hit.host:
                self.extend(allocation, matched)
                first, skip = hit.device // self.page_size, hit.device % self.page_size
                runs = allocation.runs.slice(hit.device, matched)
                running.loading = Load(found.keys[first : found.n_pages], "host", runs, skip, hit.device, allocation)
                self._transfers.append(running.loading)
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        missing = length - len(allocation.runs)
        if missing <= 0:
            return True
        if missing > self._pool.free_count:
            self._evict(missing - self._pool.free_count, allocation.id)
        runs = self._pool.allocate(missing, allocation.runs.end)
        if runs is None:
            return False
        allocation.runs.extend(runs)
        return True

    def _leaves(self, allocation: Allocation) -> int:
        running: _Running = allocation.where
        if running.loading is not None:
            # What has not landed is not there.
            return running.shared
        if self._host is not None:
            self._offload(self._host, allocation, running)
        return allocation.committed

    def _offload(self, host: HostPages, allocation: Allocation, running: _Running) -> None:
        """Copy the pages of a prompt to the host, and make those that are there the newest."""
        size = self.page_size
        new, gone = host.keep(running.keys[: allocation.committed // size])
        if gone:
            self._drop(gone, allocation.id)
        if new:
            runs = Runs(run for page in new for run in allocation.runs.slice(page * size, (page + 1) * size))
            self._transfers.append(Save([running.keys[page] for page in new], runs, ("host",)))
            self._events.record("stored", "host", len(new) * size, allocation.id)

    def _insert(self, tree: RadixTree[Node], tokens: Tokens, runs: Runs) -> int:
        node, at, passed = tree.root, 0, []
        while (found := tree.step(node, tokens, at)) is not None:
            child, shared = found
            at += shared
            if shared < len(child.tokens):
                node = tree.split(child, shared)
                # The upper part is new; the lower one keeps its stamp.
                self._recency.touch(node.usage)
            else:
                passed.append(child)
                node = child
        if at < len(tokens):
            usage = self._recency.fresh(at, len(tokens) - at)
            self._add(tree, node, tokens[at:], runs.slice(at, len(tokens)), usage)
        self._stamp(passed)
        return at

    def _stamp(self, path: list[Node]) -> None:
        """Note a use of each node, the first one newest."""
        for node in reversed(path):
            self._recency.touch(node.usage)
            if node.usage.ticket:
                self._victims.offer(node)

    def _kept(self, leaf: Node, missing: int) -> int:
        return 0

    # -- host pages ----------------------------------------------------------------------------------------------

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        if isinstance(transfer, Load):
            transfer.allocation.where.loading = None
        super().landed(transfer, n_pages)

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        assert self._host is not None
        if isinstance(transfer, Load):
            allocation, running = transfer.allocation, transfer.allocation.where
            there = max(transfer.first - transfer.skip + n_pages * self.page_size, running.shared)
            lost = running.shared + allocation.cached["host"] - there
            self._events.record("failed", "host", lost, allocation.id, there)
            allocation.cached["host"] -= lost
            allocation.committed = allocation.reused
        if isinstance(transfer, Load | Save):
            self._drop(self._host.lose(transfer.keys[n_pages:]), None)
        self._version += 1

    def _drop(self, keys: list[bytes], by: int | None) -> None:
        self._transfers.append(Drop(keys))
        self._events.record("evicted", "host", len(keys) * self.page_size, by)

    def _clear(self, tier: str) -> int:
        if tier == "host" and self._host is not None:
            gone = self._host.clear()
            self._drop(gone, None)
            self._version += 1
            return len(gone) * self.page_size
        return super()._clear(tier)

    def _tiers(self) -> list[TierState]:
        tiers = super()._tiers()
        if self._host is not None:
            capacity, used = (n * self.page_size for n in (self._host.capacity, len(self._host)))
            tiers.append(TierState("host", capacity, used, used))
        return tiers

    def check_integrity(self) -> None:
        super().check_integrity()
        if self._host is not None:
            self._host.check()
