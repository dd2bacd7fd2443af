"""Fixed-size blocks of the device pool: names for what they hold, an index by name, a queue of those that are idle.

For policies whose unit is a block: block `b` is the slots `b * block_size` up to `(b + 1) * block_size`. All of it
works on arrays of block ids, because a long prompt is thousands of blocks and there is no time for an object of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longturn.cache.radix import Tokens
from longturn.cache.slots import Run, Runs
from longturn.errors import CacheCorruption

# Block ids, int64 [n].
Ids = npt.NDArray[np.int64]
# Keys, uint64 [2, n]: column i names the content of block i and of everything before it.
Keys = npt.NDArray[np.uint64]

NO_BLOCKS: Ids = np.empty(0, dtype=np.int64)
NO_KEYS: Keys = np.empty((2, 0), dtype=np.uint64)


class PrefixKeys:
    """Makes keys of whole prefixes, so that equal keys mean equal tokens from the first one on, under equal salts.

    Multilinear hashing (Lemire and Kaser 2014) in two lanes of 64 bits: the sum of every token times a random number
    that belongs to its position, plus one that belongs to the length. Because those numbers are drawn anew for every
    instance, whoever writes the prompts cannot aim at a collision: two prefixes that differ share a key with a
    probability below 2^-62 whatever they are, and below 2^-88 for token ids under 2^20. So no tokens are compared.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._random = np.random.default_rng()
        self._secret = self._random.bytes(32)
        self._factors = self._draw(0)
        self._lengths = self._draw(0)

    def extend(self, keys: Keys, tokens: Tokens, salt: str = "") -> Keys:
        """`keys`, those of the leading whole blocks of int32 [n] `tokens`, and behind them the keys of all others."""
        size, known = self.block_size, keys.shape[1]
        n = len(tokens) // size
        if n <= known:
            return keys[:, :n]
        before = keys[:, -1:] if known else None
        sums = self._sums(before, known * size, tokens[known * size : n * size], salt)[:, size - 1 :: size]
        return np.concatenate((keys, sums + self._lengths[:, (known + 1) * size - 1 : n * size : size]), axis=1)

    def partial(self, keys: Keys, tokens: Tokens, salt: str = "") -> Keys:
        """The key, uint64 [2, 1], of all of `tokens`, of which `keys` are those of the leading whole blocks.

        For the last block of a sequence, when it is not full. It differs from every key of a whole block.
        """
        start = keys.shape[1] * self.block_size
        assert start < len(tokens)
        sums = self._sums(keys[:, -1:] if start else None, start, tokens[start:], salt)
        return sums[:, -1:] + self._lengths[:, len(tokens) - 1 : len(tokens)]

    def _sums(self, before: Keys | None, start: int, tokens: Tokens, salt: str) -> Keys:
        """The sum at every token from position `start` on, where the prefix up to there has the key `before`."""
        stop = start + len(tokens)
        if stop > self._factors.shape[1]:
            room = max(2 * stop, 4096) - self._factors.shape[1]
            self._factors = np.concatenate((self._factors, self._draw(room)), axis=1)
            self._lengths = np.concatenate((self._lengths, self._draw(room)), axis=1)
        sums = np.cumsum(self._factors[:, start:stop] * tokens.astype(np.uint64), axis=1)
        sums += self._salted(salt) if before is None else before - self._lengths[:, start - 1 : start]
        return sums

    def _salted(self, salt: str) -> Keys:
        digest = hashlib.blake2b(salt.encode(), digest_size=16, key=self._secret).digest()
        return np.frombuffer(digest, dtype=np.uint64).reshape(2, 1)

    def _draw(self, n: int) -> Keys:
        return self._random.integers(0, 2**64, (2, n), dtype=np.uint64)


def key_bytes(keys: Keys) -> list[bytes]:
    """Keys as 16 bytes each: for dicts, and for pages of the tiers below."""
    names: list[bytes] = np.ascontiguousarray(keys.T).view("V16").ravel().tolist()
    return names


def bytes_keys(names: Sequence[bytes]) -> Keys:
    """The keys of which `key_bytes` has made `names`."""
    return np.frombuffer(b"".join(names), dtype=np.uint64).reshape(-1, 2).T


class BlockIndex:
    """Finds blocks by the key of what they hold. Several blocks may hold the same content under the same key.

    A hash table with chains, whose entries are the blocks themselves, so that all work is done on arrays.
    `holds`, bool [n_blocks]: which blocks are in it; read it, do not write it. Mutated by `add` and `forget`.
    """

    def __init__(self, n_blocks: int) -> None:
        self.holds = np.zeros(n_blocks, dtype=bool)
        self._low = np.zeros(n_blocks, dtype=np.uint64)
        self._high = np.zeros(n_blocks, dtype=np.uint64)
        # Several times as many chains as blocks, so that most have one entry or none.
        self._heads = np.full(1 << (4 * n_blocks).bit_length(), -1, dtype=np.int64)
        self._mask = np.uint64(len(self._heads) - 1)
        self._next = np.full(n_blocks, -1, dtype=np.int64)

    def find(self, keys: Keys) -> Ids:
        """For every key the block that was added first of those that hold it, -1 where there is none."""
        low, high = keys
        found = np.full(len(low), -1, dtype=np.int64)
        at = self._heads.take(self._chain(low))
        rows = np.flatnonzero(at >= 0)
        at = at.take(rows)
        while len(rows):
            same = (self._low.take(at) == low.take(rows)) & (self._high.take(at) == high.take(rows))
            # New entries go to the head of a chain: the last one that fits is the oldest.
            found[rows[same]] = at[same]
            at = self._next.take(at)
            more = np.flatnonzero(at >= 0)
            rows, at = rows.take(more), at.take(more)
        return found

    def match(self, keys: Keys) -> Ids:
        """The blocks of the leading keys, up to the first that no block holds."""
        found = self.find(keys)
        absent = found < 0
        return found[: int(absent.argmax())] if absent.any() else found

    def keys(self, blocks: Ids) -> Keys:
        """The keys that blocks were last added under."""
        return np.stack((self._low[blocks], self._high[blocks]))

    def still(self, keys: Keys, blocks: Ids) -> npt.NDArray[np.bool_]:
        """Which of `blocks` (-1 is none) hold what has the keys: bool [n]."""
        low, high = keys
        same: npt.NDArray[np.bool_] = (self._low.take(blocks) == low) & (self._high.take(blocks) == high)
        return same & self.holds[blocks] & (blocks >= 0)

    def add(self, keys: Keys, blocks: Ids) -> None:
        """Enter blocks that are not in the index; the keys must differ from one another."""
        self._low[blocks], self._high[blocks] = keys
        self.holds[blocks] = True
        chains = self._chain(keys[0])
        while len(blocks):
            self._next[blocks] = self._heads[chains]
            self._heads[chains] = blocks
            # Of several blocks for one chain the last has won: the others go in front of it, one by one.
            lost = self._heads[chains] != blocks
            blocks, chains = blocks[lost], chains[lost]

    def forget(self, blocks: Ids) -> Ids:
        """Take out those of `blocks` that are in the index; returns them."""
        gone = blocks[self.holds[blocks]]
        self.holds[gone] = False
        left, chains = gone, self._chain(self._low[gone])
        while len(left):
            done = self._heads[chains] == left
            self._heads[chains[done]] = self._next[left[done]]
            if not done.any():
                # Only one of each chain at a time: taking it out changes what its neighbours are linked to.
                done[np.unique(chains, return_index=True)[1]] = True
                self._unlink(left[done], chains[done])
            left, chains = left[~done], chains[~done]
        return gone

    def check(self) -> None:
        """Raises CacheCorruption unless exactly the blocks of `holds` are in the chains of their keys, each once."""
        at, chains = self._heads.copy(), np.arange(len(self._heads))
        seen = np.zeros(len(self.holds), dtype=np.int64)
        while (more := at >= 0).any():
            at, chains = at[more], chains[more]
            np.add.at(seen, at, 1)
            if (self._chain(self._low[at]) != chains).any() or seen.max() > 1:
                raise CacheCorruption("a block is in the index under a key that is not its own")
            at = self._next[at]
        if (seen != self.holds).any():
            raise CacheCorruption(f"block {int((seen != self.holds).argmax())} is in the index, or is not, wrongly")

    def _chain(self, low: npt.NDArray[np.uint64]) -> Ids:
        return (low & self._mask).astype(np.int64)

    def _unlink(self, blocks: Ids, chains: Ids) -> None:
        """Take out blocks of different chains, none of which is at the head of its chain."""
        before = self._heads[chains]
        while len(blocks):
            after = self._next[before]
            here = after == blocks
            self._next[before[here]] = self._next[blocks[here]]
            blocks, before = blocks[~here], after[~here]


class BlockQueue:
    """Blocks in the order in which they will be handed out. Each is in it at most once.

    One long line of ids in which every block knows its place: what is taken out of the middle stays in the line as a
    gap, which is skipped at the front and squeezed out when the line is full.
    """

    def __init__(self, n_blocks: int, blocks: Ids = NO_BLOCKS) -> None:
        self._place = np.full(n_blocks, -1, dtype=np.int64)
        self._line = NO_BLOCKS
        self._head = self._tail = self._count = 0
        self.append(blocks)

    def __len__(self) -> int:
        return self._count

    def has(self, blocks: Ids) -> npt.NDArray[np.bool_]:
        """Which of `blocks` are in the queue: bool [n]."""
        return self._place[blocks] >= 0

    def append(self, blocks: Ids) -> None:
        """Put blocks, none of which is in the queue, to the back: the last one will be the last."""
        if self._tail + len(blocks) > len(self._line):
            self._squeeze(len(blocks))
        self._put(blocks, self._tail)
        self._tail += len(blocks)

    def prepend(self, blocks: Ids) -> None:
        """Put blocks, none of which is in the queue, to the front: the first one will be the first."""
        if self._head < len(blocks):
            self._squeeze(len(blocks))
        self._head -= len(blocks)
        self._put(blocks, self._head)

    def remove(self, blocks: Ids) -> None:
        """Take blocks, all of which are in the queue, out of it."""
        self._place[blocks] = -1
        self._count -= len(blocks)

    def peek(self, n: int, but: npt.NDArray[np.bool_] | None = None) -> Ids:
        """The first `n` blocks, or all when there are fewer, without those that `but`, bool [n_blocks], excludes."""
        return self._first(n, but)[0]

    def pop(self, n: int) -> Ids:
        """Take out the first `n` blocks, of which there must be so many."""
        blocks, self._head = self._first(n)
        assert len(blocks) == n
        self.remove(blocks)
        return blocks

    def check(self) -> None:
        """Raises CacheCorruption unless the blocks that have a place are those in the line."""
        blocks = self.peek(self._count + 1)
        if len(blocks) != self._count or np.count_nonzero(self._place >= 0) != self._count:
            raise CacheCorruption(f"{len(blocks)} blocks are in a queue that counts {self._count}")

    def _put(self, blocks: Ids, at: int) -> None:
        self._line[at : at + len(blocks)] = blocks
        self._place[blocks] = np.arange(at, at + len(blocks))
        self._count += len(blocks)

    def _first(self, n: int, but: npt.NDArray[np.bool_] | None = None) -> tuple[Ids, int]:
        """The first `n` blocks, or all, and the place behind the last of them."""
        parts, head, want = [NO_BLOCKS], self._head, min(n, self._count)
        step = want + 32
        while want and head < self._tail:
            stop = min(head + step, self._tail)
            ids = self._line[head:stop]
            queued = self._place[ids] == np.arange(head, stop)
            if head == self._head and not queued.any():
                # Nothing but gaps at the front: nobody needs to look at them again.
                self._head = stop
            there = np.flatnonzero(queued if but is None else queued & ~but[ids])[:want]
            parts.append(ids[there])
            want -= len(there)
            head = stop if want else head + int(there[-1]) + 1
            step *= 2
        return (parts[1] if len(parts) == 2 else np.concatenate(parts)), head

    def _squeeze(self, n: int) -> None:
        """Close the gaps, with room for `n` more blocks at either end."""
        blocks = self.peek(self._count)
        room = max(n, self._count, 256)
        self._line = np.empty(len(blocks) + 2 * room, dtype=np.int64)
        self._head, self._count = room, 0
        self._tail = room + len(blocks)
        self._put(blocks, room)


def block_runs(blocks: Ids, block_size: int) -> Runs:
    """The slots of `blocks` in this order."""
    if not len(blocks):
        return Runs()
    breaks = np.flatnonzero(np.diff(blocks) != 1)
    starts = blocks[np.concatenate(([0], breaks + 1))] * block_size
    stops = (blocks[np.concatenate((breaks, [len(blocks) - 1]))] + 1) * block_size
    return Runs(Run(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))
