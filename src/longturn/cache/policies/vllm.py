"""vLLM's prefix cache: blocks found by the hash of their prefix, handed out again in the order of their release.

Follows vLLM 0.33 (V1 engine): `v1/core/block_pool.py`, `kv_cache_manager.py` and `kv_cache_utils.py`. Only whole blocks
are reused, and never the one with the last token of a prompt. There is no tree: a block that is handed out again takes
its name out of the index, and what followed it stays there, out of reach. Nothing is evicted before its room is needed.
A hit takes a block out of the queue of idle ones; only release puts it back, tail first and at the end, or at the front
if nothing can be found in it. Equal content that is computed twice is kept twice, and the older copy is found.

Left out: groups of sliding-window and recurrent layers, LoRA, multimodal keys, speculative decoding, the watermark (0
by default), and the null block, which the engine allocates beside the usable ones. Where it differs: a prompt's blocks
are all taken at admission, also where the engine would compute it in several steps, and a block can be found once it is
computed, not as soon as that is planned; neither shows while requests run one by one. Of several blocks without a name
that a cancelled prompt leaves, the last goes out first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from longturn.cache.blocks import NO_BLOCKS, NO_KEYS, BlockIndex, BlockQueue, Ids, Keys, PrefixKeys, block_runs
from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.policies.base import EnginePolicy, Sizes
from longturn.cache.policies.options import tokens
from longturn.cache.radix import Tokens
from longturn.cache.slots import Run, Runs
from longturn.cache.transfers import Transfer
from longturn.errors import CacheCorruption, ConfigError


@dataclass(frozen=True)
class VllmOptions:
    """What users set."""

    block_size: int = tokens(16, "tokens in a block", least=1)


class Place(NamedTuple):
    """Where a hit was found: the keys of all whole blocks of the prompt, the blocks of the device that hold the first
    ones, and the version of the cache when that was so. on_host: how many more the tier of `vllm-offload` holds."""

    keys: Keys
    blocks: Ids
    version: int
    on_host: int = 0


@dataclass(eq=False)
class Table:
    """The blocks of a running request, the keys of those that are whole, and how many are in the index."""

    blocks: Ids
    keys: Keys
    indexed: int


class VllmCache(EnginePolicy):
    """See the module's text."""

    name = "vllm"

    def __init__(self, options: VllmOptions, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.page_size = self._size = options.block_size
        n_blocks = sizes.device // self._size
        if not n_blocks:
            raise ConfigError(
                f"the device has {sizes.device * sizes.unit} tokens, less than a block of {self._size * sizes.unit}: "
                "give more, or make block_size smaller"
            )
        self.longest = n_blocks * self._size
        self._names = PrefixKeys(self._size)
        self._index = BlockIndex(n_blocks)
        self._queue = BlockQueue(n_blocks, np.arange(n_blocks))
        self._refs = np.zeros(n_blocks, dtype=np.int32)
        self._version = 0

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        keys = self._names.extend(NO_KEYS, tokens, salt)
        blocks = self._index.match(keys[:, : max(len(tokens) - 1, 0) // self._size])
        place = Place(keys, blocks, self._version)
        return Hit(tokens, salt, device=len(blocks) * self._size, where=place)

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        if hit.where.version != self._version:
            hit = self.lookup(hit.tokens, hit.salt)
        keys, found = hit.where.keys, hit.where.blocks
        idle = found[self._queue.has(found)]
        missing = -(-len(hit.tokens) // self._size) - len(found)
        if missing > len(self._queue) - len(idle):
            return None
        self._queue.remove(idle)
        self._refs[found] += 1
        blocks = np.concatenate((found, self._take(missing, self._next_id + 1)))
        cached = {tier: n for tier, n in (("device", hit.device), ("host", hit.host)) if n}
        allocation = self._allocate(hit, self._slots(blocks, 0), cached, output)
        allocation.where = Table(blocks, keys, len(found))
        allocation.committed = hit.device
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        if length <= len(allocation.runs):
            return True
        table: Table = allocation.where
        missing = -(-length // self._size) - len(table.blocks)
        if missing > len(self._queue):
            return False
        fresh = self._take(missing, allocation.id)
        allocation.runs.extend(self._slots(fresh, len(allocation.runs)))
        table.blocks = np.concatenate((table.blocks, fresh))
        return True

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        table: Table = allocation.where
        whole = len(tokens) // self._size
        if whole <= table.indexed:
            return
        if whole > table.keys.shape[1]:
            table.keys = self._names.extend(table.keys, tokens, allocation.salt)
        self._enter(allocation, whole)

    def release(self, allocation: Allocation) -> None:
        del self._allocations[allocation.id]
        blocks = allocation.where.blocks[::-1]
        self._refs[blocks] -= 1
        idle = blocks[self._refs[blocks] == 0]
        named = self._index.holds[idle]
        self._queue.append(idle[named])
        self._queue.prepend(idle[~named])

    def check_integrity(self) -> None:
        self._index.check()
        self._queue.check()
        refs = np.zeros_like(self._refs)
        for allocation in self._allocations.values():
            table: Table = allocation.where
            np.add.at(refs, table.blocks, 1)
            named, own = table.blocks[: table.indexed], table.blocks[table.indexed :]
            if not self._index.holds[named].all() or (self._index.keys(named) != table.keys[:, : table.indexed]).any():
                raise CacheCorruption("a running request has a block that went out of the index, or has another name")
            if self._index.holds[own].any() or (self._refs[own] != 1).any():
                raise CacheCorruption("a block that is not computed yet can be found")
            if len(allocation.runs) != len(table.blocks) * self._size:
                raise CacheCorruption("a running request has more or fewer slots than its blocks")
        if (refs != self._refs).any():
            raise CacheCorruption(f"block {int((refs != self._refs).argmax())} is held more or less often than counted")
        if (self._queue.has(np.arange(len(refs))) != (refs == 0)).any():
            raise CacheCorruption("a block is queued although held, or the reverse")

    def _enter(self, allocation: Allocation, whole: int) -> None:
        """Index the first `whole` blocks, as far as they are not."""
        table: Table = allocation.where
        new = slice(table.indexed, whole)
        self._index.add(table.keys[:, new], table.blocks[new])
        table.indexed = whole
        allocation.committed = whole * self._size
        self._version += 1

    def _take(self, n: int, by: int) -> Ids:
        """The next `n` blocks of the queue, of which there must be so many; what they held is lost."""
        if not n:
            return NO_BLOCKS
        blocks = self._queue.pop(n)
        evicted = self._index.forget(blocks)
        self._events.record("evicted", "device", len(evicted) * self._size, by)
        self._refs[blocks] = 1
        self._version += 1
        return blocks

    def _slots(self, blocks: Ids, first: int) -> Runs:
        """The slots of `blocks` for the tokens from position `first` on; made up where slots are only counted."""
        if self.sizes.real:
            return block_runs(blocks, self._size)
        return Runs((Run(first, first + len(blocks) * self._size),))

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        raise CacheCorruption("a cache that lists no transfers was told that one was lost")

    def _clear(self, tier: str) -> int:
        self._version += 1
        return len(self._index.forget(self._queue.peek(len(self._queue)))) * self._size

    def _tiers(self) -> list[TierState]:
        idle = int(np.count_nonzero(self._index.holds[self._queue.peek(len(self._queue))])) * self._size
        used = int(np.count_nonzero(self._refs)) * self._size + idle
        return [TierState("device", self.longest, used, idle)]
