"""TensorRT-LLM's trie of blocks: which block's content follows which, found whole or in part.

Follows `KVCacheBlock` and `templatedTrie.h` of its V1 manager, for one window. A node is a block; when it goes, all
that is below it goes. Whole blocks are found by the key of their prefix, without walking; children are linked lists in
arrays, so that chains of thousands of blocks are hung up and taken down at once.
"""

from __future__ import annotations

import numpy as np

from longturn.cache.blocks import NO_BLOCKS, BlockIndex, Ids, Keys
from longturn.cache.radix import Tokens
from longturn.errors import CacheCorruption

_NONE = -1


class BlockTrie:
    """Blocks 0 up to `n_blocks`, of `size` tokens each, those that are in it (`holds`) below a root for each salt.

    n_tokens, int64 [n_blocks]: tokens in each block, `size` where it is full.
    """

    def __init__(self, n_blocks: int, size: int) -> None:
        self._size = size
        self._index = BlockIndex(n_blocks)
        self.holds = self._index.holds
        self.n_tokens = np.zeros(n_blocks, dtype=np.int64)
        # With blocks of one token nothing can match in part, and nobody looks at the tokens.
        self._tokens = np.zeros((n_blocks if size > 1 else 0, size), dtype=np.int32)
        # Nodes are the blocks and, behind them, the roots, for which the arrays grow.
        self._parent, self._child, self._left, self._right = np.full((4, n_blocks), _NONE, dtype=np.int64)
        self._marked = np.zeros(n_blocks, dtype=bool)
        self._n_blocks = n_blocks
        self._roots: dict[str, int] = {}
        self._salts: dict[int, str] = {}
        self._unused: list[int] = []

    def match(self, keys: Keys) -> Ids:
        """The blocks that hold what has the leading keys, as far as they go."""
        return self._index.match(keys)

    def leaf(self, block: int) -> bool:
        """Whether nothing is below a block."""
        return bool(self._child[block] == _NONE)

    def partial(self, parent: int | None, salt: str, tokens: Tokens) -> list[tuple[int, int]]:
        """Blocks below `parent` (the root where it is None) that begin like int32 [n] `tokens`, n <= size, and how many
        tokens they share with it: first one that is just these and not full, then those that share most."""
        node = self._roots.get(salt) if parent is None else parent
        at = _NONE if node is None else int(self._child[node])
        if self._size == 1 or not len(tokens):
            return []
        below = []
        while at != _NONE:
            below.append(at)
            at = int(self._right[at])
        if not below:
            return []
        blocks = np.array(below)
        same = self._tokens[blocks, : len(tokens)] == tokens
        same &= np.arange(len(tokens)) < self.n_tokens[blocks, None]
        shared = np.where(same.all(axis=1), len(tokens), same.argmin(axis=1))
        exact = (shared == len(tokens)) & (self.n_tokens[blocks] == len(tokens))
        best = np.lexsort((-shared, ~exact))
        return [(below[i], int(shared[i])) for i in best.tolist() if shared[i]]

    def attach(self, parent: int | None, salt: str, blocks: Ids, keys: Keys, tokens: Tokens) -> None:
        """Hang a chain of blocks, none of which is in the trie, below `parent` (below the root where it is None).

        keys: of each of them; tokens: int32 [n], what is in them, so that only the last may not be full.
        """
        if not len(blocks):
            return
        self._index.add(keys, blocks)
        self.n_tokens[blocks] = self._size
        self.n_tokens[blocks[-1]] = len(tokens) - (len(blocks) - 1) * self._size
        if self._size > 1:
            padded = np.zeros(len(blocks) * self._size, dtype=np.int32)
            padded[: len(tokens)] = tokens
            self._tokens[blocks] = padded.reshape(-1, self._size)
        self._parent[blocks[1:]] = blocks[:-1]
        self._child[blocks[:-1]] = blocks[1:]
        self._child[blocks[-1]] = _NONE
        self._left[blocks] = self._right[blocks] = _NONE
        top, node = int(blocks[0]), self._root(salt) if parent is None else parent
        self._parent[top], self._right[top] = node, self._child[node]
        if self._child[node] != _NONE:
            self._left[self._child[node]] = top
        self._child[node] = top

    def detach(self, blocks: Ids) -> Ids:
        """Take out those of `blocks` that are in the trie, and all that is below them; returns what was taken out."""
        parts, wave = [NO_BLOCKS], blocks[self.holds[blocks]]
        while len(wave):
            parts.append(wave)
            self._marked[wave] = True
            at, below = self._child[wave], [NO_BLOCKS]
            while len(at := at[at != _NONE]):
                below.append(at)
                at = self._right[at]
            wave = np.concatenate(below)
            wave = wave[~self._marked[wave]]
        gone = np.concatenate(parts)
        for top in gone[~self._marked[self._parent[gone]]].tolist():
            self._unlink(top)
        self._marked[gone] = False
        self._child[gone] = _NONE
        return self._index.forget(gone)

    def check(self) -> None:
        """Raises CacheCorruption when the structure is broken."""
        self._index.check()
        seen = np.zeros(self._n_blocks, dtype=bool)
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            left, at = _NONE, int(self._child[node])
            if node >= self._n_blocks and at == _NONE:
                raise CacheCorruption("a root without blocks is kept")
            while at != _NONE:
                if self._parent[at] != node or self._left[at] != left or seen[at]:
                    raise CacheCorruption(f"block {at} is linked wrongly in the trie")
                if node < self._n_blocks and self.n_tokens[node] != self._size:
                    raise CacheCorruption(f"block {at} follows one that is not full")
                seen[at] = True
                stack.append(at)
                left, at = at, int(self._right[at])
        if (seen != self.holds).any():
            raise CacheCorruption("the trie does not hold what the index does")

    def _root(self, salt: str) -> int:
        root = self._roots.get(salt)
        if root is None:
            if not self._unused:
                first, more = len(self._parent), max(len(self._roots), 8)
                links = np.full((4, more), _NONE, dtype=np.int64)
                arrays = (self._parent, self._child, self._left, self._right)
                self._parent, self._child, self._left, self._right = (
                    np.concatenate(pair) for pair in zip(arrays, links, strict=True)
                )
                self._marked = np.concatenate((self._marked, np.zeros(more, dtype=bool)))
                self._unused = list(range(first, first + more))
            root = self._roots[salt] = self._unused.pop()
            self._salts[root] = salt
        return root

    def _unlink(self, block: int) -> None:
        parent, left, right = int(self._parent[block]), int(self._left[block]), int(self._right[block])
        if right != _NONE:
            self._left[right] = left
        if left != _NONE:
            self._right[left] = right
            return
        self._child[parent] = right
        if right == _NONE and parent >= self._n_blocks:
            # The last block of a salt is gone, and so is its root.
            self._unused.append(parent)
            del self._roots[self._salts.pop(parent)]
