"""TensorRT-LLM's blocks in two levels of memory: which are idle, which is handed out next, and how they change places.

Follows `WindowBlockManager::getFreeBlock` and `onboardBlock` of its V1 manager. A block is not a place: it keeps its
id, its priority and its node in the trie when its content moves between device and host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from longturn.cache.blocks import NO_BLOCKS, Ids, block_runs
from longturn.cache.contract import Allocation
from longturn.cache.events import EventLog
from longturn.cache.pages import KEY_BYTES
from longturn.cache.policies.trtllm_queues import DEFAULT, Durations, IdleBlocks
from longturn.cache.policies.trtllm_trie import BlockTrie
from longturn.cache.slots import Run, Runs
from longturn.cache.transfers import Drop, Load, Save, Transfer
from longturn.errors import CacheCorruption

# Blocks of a lower priority are not worth a place on the host.
_WORTH_KEEPING = 30
_NO_PAGE = -1


class BlockMemory:
    """`n_device` blocks on the device and `n_host` on the host, of `size` tokens, whose content is in a trie.

    refs, int32 [n]: requests that use each block; one that is not used is in the queue of its level and priority.
    filled, bool [n]: it has held tokens, perhaps of a prefix that is in the trie no more. loading, bool [n]: its
    content is on its way to the device. Lists the moves in `transfers`.
    """

    def __init__(
        self, n_device: int, n_host: int, size: int, *, real: bool, clock: Callable[[], float], events: EventLog
    ) -> None:
        n = n_device + n_host
        self.trie = BlockTrie(n, size)
        self.refs = np.zeros(n, dtype=np.int32)
        self.filled = np.zeros(n, dtype=bool)
        self.loading = np.zeros(n, dtype=bool)
        self.transfers: list[Transfer] = []
        self._size, self._real, self._clock, self._events = size, real, clock, events
        self._n_device = n_device
        # Where each block lies: below `n_device` on the device, from there on on the host, under the key of its page.
        self._place = np.arange(n)
        self._page = np.full(n, _NO_PAGE, dtype=np.int64)
        self._pages = 0
        self._priority = np.full(n, DEFAULT, dtype=np.int64)
        self._durations = Durations()
        self._wanted = np.zeros(n, dtype=bool)
        self._device = IdleBlocks(self._priority, np.arange(n_device))
        self._host = IdleBlocks(self._priority, np.arange(n_device, n))

    @property
    def idle(self) -> int:
        """Blocks of the device that no request uses."""
        return len(self._device)

    def on_host(self, blocks: Ids) -> npt.NDArray[np.bool_]:
        """Which of `blocks` lie on the host: bool [n]."""
        return self._place[blocks] >= self._n_device

    def runs(self, blocks: Ids, first: int = 0) -> Runs:
        """The slots of blocks of the device, for the tokens from position `first` on; made up where only counted."""
        if self._real:
            return block_runs(self._place[blocks], self._size)
        return Runs((Run(first, first + len(blocks) * self._size),))

    def use(self, blocks: Ids) -> None:
        """A request uses blocks of the device."""
        idle = blocks[self.refs[blocks] == 0]
        self._device.remove(idle)
        self._durations.stop(idle)
        self.refs[blocks] += 1

    def release(self, blocks: Ids) -> None:
        """A request does not use `blocks` any more; the last of them goes first."""
        self.refs[blocks] -= 1
        idle = blocks[self.refs[blocks] == 0][::-1]
        self._device.append(idle)
        self._durations.begin(idle, self._clock())

    def fresh(self, n: int) -> Ids:
        """Take `n` blocks of the device, of which so many must be idle, for new content."""
        parts = [NO_BLOCKS]
        while n:
            priority, queue = self._device.lowest()
            k = min(n, len(queue))
            if len(self._host) and priority >= _WORTH_KEEPING:
                k = min(k, len(self._host.lowest()[1]))
            chosen, moved = self._take(k)
            self._put_down(moved)
            parts.append(chosen)
            n -= k
        return np.concatenate(parts)

    def bring_up(self, run: Ids, path: Ids, first: int, n_tokens: int, allocation: Allocation) -> int:
        """Use blocks of the host, bringing them to the device: as many of `run` as can be done in one go.

        path: all blocks that will be wanted, of which `run` are the first. For each block in turn the engine takes a
        block of the device, which may push out one that is wanted later; up to there they are done together. The
        first `n_tokens` tokens of `run` are loaded, for position `first` on. Returns how many blocks were done.
        """
        n = len(run)
        self._wanted[path] = True
        for idle in (self._device, self._host):
            ahead = self._wanted[idle.lowest()[1].peek(n)]
            n = min(n, int(ahead.argmax()) if ahead.any() else len(ahead))
        self._wanted[path] = False
        run = run[: max(n, 1)]
        self._host.remove(run)
        self._durations.stop(run)
        self.refs[run] += 1
        left, moved = self._take(len(run))
        self._place[left], self._place[run] = self._place[run], self._place[left]
        self.refs[left] = 0
        # In the engine's order: what made room for a block, then the empty place that the block has left.
        self._put_down(np.stack((moved, left), axis=1).ravel())
        n_tokens = min(n_tokens, len(run) * self._size)
        keys, self._page[run] = self._keys(run), _NO_PAGE
        self.transfers.append(Load(keys, "host", self.runs(run, first).slice(0, n_tokens), 0, first, allocation))
        self.transfers.append(Drop(keys))
        self.loading[run] = True
        return len(run)

    def load(self, source: Ids, own: Ids, n_tokens: int, first: int, allocation: Allocation) -> None:
        """Copy the first `n_tokens` tokens of a block of the host, which stays there, for position `first` on."""
        runs = self.runs(own, first).slice(0, n_tokens)
        self.transfers.append(Load(self._keys(source), "host", runs, 0, first, allocation))

    def take_out(self, blocks: Ids) -> None:
        """Take blocks and all that is below them out of the trie; they stay where they are."""
        gone = self.trie.detach(blocks)
        below = int(np.count_nonzero(self.on_host(gone)))
        self._events.record("evicted", "device", (len(gone) - below) * self._size)
        self._events.record("evicted", "host", below * self._size)

    def lose(self, keys: Iterable[bytes]) -> None:
        """Pages did not arrive on the host, or are not there any more."""
        blocks = np.flatnonzero(np.isin(self._page, [int.from_bytes(key) for key in keys]))
        self._page[blocks] = _NO_PAGE
        self.take_out(blocks)

    def prefer(self, blocks: Ids, priority: int, seconds: float | None) -> None:
        """Give blocks a priority, for some seconds from when they are idle, or for ever."""
        idle = blocks[self.refs[blocks] == 0][::-1]
        below = self.on_host(idle)
        for level, some in ((self._device, idle[~below]), (self._host, idle[below])):
            level.remove(some)
            self._priority[some] = priority
            level.append(some)
        self._priority[blocks] = priority
        self._durations.set(blocks, seconds)
        self._durations.begin(idle, self._clock())

    def expire(self) -> None:
        """Blocks whose time has ended go to the back of the default priority."""
        for block in self._durations.ended(self._clock()):
            self.prefer(np.array([block]), DEFAULT, None)

    def clear(self, host: bool) -> int:
        """Forget what idle blocks of a level hold; returns how many held something."""
        if not host:
            blocks = self._device.all()
            held = int(np.count_nonzero(self.trie.holds[blocks]))
            self.filled[blocks] = False
        else:
            blocks = np.flatnonzero(self._page != _NO_PAGE)
            held = len(blocks)
            self.transfers.append(Drop(self._keys(blocks)))
            self._page[blocks] = _NO_PAGE
        self.trie.detach(blocks)
        return held

    def holding(self) -> tuple[int, int, int]:
        """Blocks of the device that are used or hold something, those of them that are idle, and pages on the host."""
        idle = int(np.count_nonzero(self.trie.holds[self._device.all()]))
        return int(np.count_nonzero(self.refs)) + idle, idle, int(np.count_nonzero(self._page != _NO_PAGE))

    def check(self, tables: Iterable[Ids]) -> None:
        """Raises CacheCorruption when an invariant is broken. tables: the blocks of every running request."""
        self.trie.check()
        refs = np.zeros_like(self.refs)
        for blocks in tables:
            np.add.at(refs, blocks, 1)
        if (refs != self.refs).any():
            raise CacheCorruption(f"block {int((refs != self.refs).argmax())} is used more or less often than counted")
        n = len(refs)
        if (np.bincount(self._place, minlength=n) != 1).any():
            raise CacheCorruption("two blocks lie in the same place")
        below = self.on_host(np.arange(n))
        if (refs[below] > 0).any() or (self._page[~below] != _NO_PAGE).any():
            raise CacheCorruption("a block that is used lies on the host, or one of the device has a page")
        self._device.check(np.flatnonzero(~below & (refs == 0)))
        self._host.check(np.flatnonzero(below))
        lost = self.trie.holds & below & (self._page == _NO_PAGE)
        if lost.any():
            raise CacheCorruption(f"block {int(lost.argmax())} can be found on the host, where it is not")

    def _take(self, k: int) -> tuple[Ids, Ids]:
        """The next `k` blocks of the lowest priority, and for each the block that moved to the host for it, or -1.

        What moved is in no queue yet. The host must have `k` idle blocks of its lowest priority, or none.
        """
        priority, queue = self._device.lowest()
        chosen = queue.pop(k)
        self._durations.stop(chosen)
        moved = np.full(k, -1)
        cold = self.filled[chosen]
        if priority >= _WORTH_KEEPING and len(self._host) and cold.any():
            down = chosen[cold]
            moved[cold], chosen[cold] = down, self._swap(down)
        self.take_out(chosen)
        self.refs[chosen] = 1
        self._priority[chosen] = DEFAULT
        self._durations.set(chosen, None)
        return chosen, moved

    def _swap(self, down: Ids) -> Ids:
        """Let blocks of the device change places with the next ones of the host; returns these."""
        up = self._host.lowest()[1].pop(len(down))
        self._durations.stop(up)
        stale = up[self._page[up] != _NO_PAGE]
        if len(stale):
            self.transfers.append(Drop(self._keys(stale)))
            self._page[stale] = _NO_PAGE
        self._page[down] = np.arange(self._pages, self._pages + len(down))
        self._pages += len(down)
        self.transfers.append(Save(self._keys(down), self.runs(down), ("host",)))
        self._place[down], self._place[up] = self._place[up], self._place[down]
        kept = int(np.count_nonzero(self.trie.holds[down])) * self._size
        self._events.record("evicted", "device", kept, kept_in="host")
        self._events.record("stored", "host", kept)
        return up

    def _put_down(self, blocks: Ids) -> None:
        """Queue blocks that are on the host now; -1 is none."""
        blocks = blocks[blocks >= 0]
        self._host.append(blocks)
        self._durations.begin(blocks, self._clock())

    def _keys(self, blocks: Ids) -> list[bytes]:
        return [page.to_bytes(KEY_BYTES) for page in self._page[blocks].tolist()]
