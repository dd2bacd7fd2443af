"""What vLLM keeps in host memory, and in which order it goes: the host half of `vllm-offload`.

Follows vLLM 0.33, `v1/kv_offload/cpu`: `policies/lru.py`, `policies/arc.py` (Megiddo and Modha's adaptive replacement
cache, 2003, worked in batches) and the filter behind `store_threshold`. A chunk is one block, by default and here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from longturn.cache.blocks import NO_BLOCKS, NO_KEYS, BlockIndex, BlockQueue, Ids, Keys, key_bytes
from longturn.errors import CacheCorruption

# Keys whose offers are counted for `store_threshold`.
_TRACKED = 64_000


class Order(Protocol):
    """The chunks of a host tier in the order of their eviction. All arrays of chunks are given shallowest first."""

    def use(self, chunks: Ids) -> None:
        """A running request has loaded, offered or stored `chunks`, which are all of it that is here."""

    def adapt(self, missing: Keys) -> None:
        """A request is about to store what has the keys `missing`."""

    def evict(self, n: int, but: npt.NDArray[np.bool_], keys: BlockIndex) -> Ids | None:
        """Take out `n` chunks but those that `but`, bool [n_chunks], excludes; None, and no change, if too few."""

    def insert(self, chunks: Ids, keys: Keys) -> None:
        """Take in new chunks, whose keys are `keys`."""

    def end(self, chunks: Ids, stored: npt.NDArray[np.bool_]) -> None:
        """The request has ended. `chunks`: as in `use`; stored, bool [n]: which of them were new with it."""

    def drop(self, chunks: Ids) -> None:
        """Take out chunks that were lost."""

    def check(self, held: Ids) -> None:
        """Raises CacheCorruption unless exactly the chunks `held` are ordered."""


class Lru:
    """The request that used a chunk last decides; of one request the deepest chunk goes first."""

    def __init__(self, n_chunks: int) -> None:
        self._queue = BlockQueue(n_chunks)

    def use(self, chunks: Ids) -> None:
        self._queue.remove(chunks)
        self._queue.append(chunks[::-1])

    def adapt(self, missing: Keys) -> None:
        pass

    def evict(self, n: int, but: npt.NDArray[np.bool_], keys: BlockIndex) -> Ids | None:
        chunks = self._queue.peek(n, but)
        if len(chunks) < n:
            return None
        self._queue.remove(chunks)
        return chunks

    def insert(self, chunks: Ids, keys: Keys) -> None:
        self._queue.append(chunks)

    def end(self, chunks: Ids, stored: npt.NDArray[np.bool_]) -> None:
        self.use(chunks)

    def drop(self, chunks: Ids) -> None:
        self._queue.remove(chunks)

    def check(self, held: Ids) -> None:
        self._queue.check()
        if len(self._queue) != len(held) or not self._queue.has(held).all():
            raise CacheCorruption("a chunk of host memory is not in the order of eviction, or wrongly so")


class Arc:
    """Adaptive replacement: chunks used by one request only (`recent`) against those that came back (`frequent`).

    A request adapts and promotes each chunk once, however many steps it takes. Chunks that went remain as ghosts.
    """

    def __init__(self, n_chunks: int) -> None:
        self._capacity = n_chunks
        self._recent, self._frequent = BlockQueue(n_chunks), BlockQueue(n_chunks)
        self._recent_ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._frequent_ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._target = 0.0

    def use(self, chunks: Ids) -> None:
        pass

    def adapt(self, missing: Keys) -> None:
        recent, frequent = self._recent_ghosts, self._frequent_ghosts
        if not recent and not frequent:
            return
        for key in reversed(key_bytes(missing)):
            if key in recent:
                self._target = min(self._capacity, self._target + max(1.0, len(frequent) / len(recent)))
                recent.move_to_end(key)
            elif key in frequent:
                self._target = max(0.0, self._target - max(1.0, len(recent) / len(frequent)))
                frequent.move_to_end(key)

    def evict(self, n: int, but: npt.NDArray[np.bool_], keys: BlockIndex) -> Ids | None:
        recent, frequent = self._recent.peek(n, but), self._frequent.peek(n, but)
        if len(recent) + len(frequent) < n:
            return None
        # One by one: from `recent` while it has its target, then from `frequent`, then from what is left.
        above = min(len(self._recent) - int(self._target) + 1, len(recent), n)
        from_recent = max(above, n - len(frequent), 0)
        recent, frequent = recent[:from_recent], frequent[: n - from_recent]
        for queue, ghosts, chunks in (
            (self._recent, self._recent_ghosts, recent),
            (self._frequent, self._frequent_ghosts, frequent),
        ):
            queue.remove(chunks)
            ghosts.update(dict.fromkeys(key_bytes(keys.keys(chunks))))
            while len(ghosts) > self._capacity:
                ghosts.popitem(last=False)
        return np.concatenate((recent, frequent))

    def insert(self, chunks: Ids, keys: Keys) -> None:
        self._recent.append(chunks)
        for key in key_bytes(keys):
            self._recent_ghosts.pop(key, None)
            self._frequent_ghosts.pop(key, None)

    def end(self, chunks: Ids, stored: npt.NDArray[np.bool_]) -> None:
        once = stored & self._recent.has(chunks)
        for queue in (self._recent, self._frequent):
            queue.remove(chunks[queue.has(chunks)])
        self._recent.append(chunks[once][::-1])
        self._frequent.append(chunks[~once][::-1])

    def drop(self, chunks: Ids) -> None:
        for queue in (self._recent, self._frequent):
            queue.remove(chunks[queue.has(chunks)])

    def check(self, held: Ids) -> None:
        self._recent.check()
        self._frequent.check()
        if (self._recent.has(held) == self._frequent.has(held)).any():
            raise CacheCorruption("a chunk of host memory is in both lists of ARC, or in none")
        if len(self._recent) + len(self._frequent) != len(held):
            raise CacheCorruption("the lists of ARC have chunks that are not in host memory")
        if max(len(self._recent_ghosts), len(self._frequent_ghosts)) > self._capacity:
            raise CacheCorruption("ARC remembers more ghosts than it has chunks")


@dataclass(eq=False)
class Visit:
    """What a running request has used of host memory, or was refused: its blocks from number `first` on.

    chunks: where each of them was, -1 for nowhere; stored, bool: which of them were new.
    """

    first: int = 0
    chunks: Ids = field(default_factory=lambda: NO_BLOCKS)
    stored: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))

    @property
    def stop(self) -> int:
        """The number of the block behind them."""
        return self.first + len(self.chunks)

    def add(self, chunks: Ids, stored: npt.NDArray[np.bool_]) -> None:
        """Append blocks."""
        self.chunks = np.concatenate((self.chunks, chunks))
        self.stored = np.concatenate((self.stored, stored))

    def cut(self, n: int) -> None:
        """Keep the first `n` blocks only."""
        self.chunks, self.stored = self.chunks[:n], self.stored[:n]


class HostTier:
    """`n_chunks` chunks of host memory, found by key. Lists no transfers; mutated by all methods but `match`.

    Keys are those of all whole blocks of a request, from the first one on.
    """

    def __init__(self, n_chunks: int, order: str, threshold: int) -> None:
        self.n_chunks = n_chunks
        self._index = BlockIndex(n_chunks)
        self._free = BlockQueue(n_chunks, np.arange(n_chunks))
        self._order: Order = Arc(n_chunks) if order == "arc" else Lru(n_chunks)
        self._excluded = np.zeros(n_chunks, dtype=bool)
        self._threshold = threshold
        self._offers: OrderedDict[bytes, int] = OrderedDict()

    @property
    def used(self) -> int:
        """Chunks that hold something."""
        return self.n_chunks - len(self._free)

    def match(self, keys: Keys, first: int) -> int:
        """How many blocks are here without a gap from number `first` on."""
        return len(self._index.match(keys[:, first:]))

    def load(self, keys: Keys, first: int, stop: int) -> Visit:
        """A request loads the blocks from `first` up to `stop`, all of which are here."""
        chunks = self._index.find(keys[:, first:stop])
        self._order.use(chunks)
        return Visit(first, chunks, np.zeros(len(chunks), dtype=bool))

    def offer(self, keys: Keys, visit: Visit, stop: int) -> tuple[Ids, Keys]:
        """A request offers its blocks up to `stop`, behind those that it has used already (mutates `visit`).

        Those that are missing and wanted are all taken in, or none if there is no room. Returns the numbers of the
        blocks that must be stored, and the keys of those that had to go.
        """
        first, offered = visit.stop, keys[:, visit.stop : stop]
        chunks = self._index.find(offered)
        wanted = np.flatnonzero(chunks < 0)
        if self._threshold > 1:
            wanted = wanted[self._offered_enough(offered[:, wanted])]
        self._order.adapt(offered[:, wanted])
        gone, evicted = self._make_room(len(wanted), chunks[chunks >= 0]), NO_KEYS
        if gone is None:
            wanted = NO_BLOCKS
        elif len(wanted):
            evicted = self._index.keys(self._index.forget(gone))
            self._free.append(gone)
            chunks[wanted] = self._free.pop(len(wanted))
            self._index.add(offered[:, wanted], chunks[wanted])
            self._order.insert(chunks[wanted], offered[:, wanted])
        stored = np.zeros(len(chunks), dtype=bool)
        stored[wanted] = True
        visit.add(chunks, stored)
        self._order.use(visit.chunks[self._still(keys, visit)])
        return first + wanted, evicted

    def end(self, keys: Keys, visit: Visit) -> None:
        """A request has ended."""
        here = self._still(keys, visit)
        self._order.end(visit.chunks[here], visit.stored[here])

    def lose(self, keys: Keys) -> None:
        """Forget those of `keys` that are here."""
        chunks = self._index.find(keys)
        chunks = chunks[chunks >= 0]
        self._order.drop(chunks)
        self._index.forget(chunks)
        self._free.append(chunks)

    def clear(self) -> Keys:
        """Forget everything; returns the keys."""
        keys = self._index.keys(np.flatnonzero(self._index.holds))
        self.lose(keys)
        return keys

    def check(self) -> None:
        """Raises CacheCorruption when an invariant is broken."""
        self._index.check()
        self._free.check()
        held = np.flatnonzero(self._index.holds)
        self._order.check(held)
        if len(held) + len(self._free) != self.n_chunks or self._free.has(held).any():
            raise CacheCorruption("a chunk of host memory is free although it holds something, or the reverse")

    def _make_room(self, n: int, but: Ids) -> Ids | None:
        short = n - len(self._free)
        if short <= 0:
            return NO_BLOCKS
        self._excluded[but] = True
        gone = self._order.evict(short, self._excluded, self._index)
        self._excluded[but] = False
        return gone

    def _still(self, keys: Keys, visit: Visit) -> npt.NDArray[np.bool_]:
        return self._index.still(keys[:, visit.first : visit.stop], visit.chunks)

    def _offered_enough(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Count an offer of each key; which of them have been offered often enough."""
        counts, enough = self._offers, np.zeros(keys.shape[1], dtype=bool)
        for i, key in enumerate(key_bytes(keys)):
            counts[key] = counts.get(key, 0) + 1
            counts.move_to_end(key)
            if len(counts) > _TRACKED:
                counts.popitem(last=False)
            enough[i] = counts[key] >= self._threshold
        return enough
