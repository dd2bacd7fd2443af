"""LMDeploy's TurboMind up to 0.14: blocks of 64 tokens, the useless ones kept in memory until their turn comes.

Follows src/turbomind/models/llama of InternLM/lmdeploy 0.14.0 (SequenceManager, BlockManager, BlockTrie), for text and
without interactive sessions:

- Whole blocks are reused, fewer than the prompt has tokens: a repeated prompt computes its last 1 to 64 tokens.
- Prompts are indexed as they are computed, output at the end. Where a block is indexed already the index moves to the
  newer copy, and the older one stays in memory unseen.
- When a request ends all its blocks stay, also the last one that is not full and the one for a decode launched too
  many. The least recently used goes first, the blocks of one request from the last to the first, useless ones like
  others, and only as many as are missing.

The engine tells its client nothing of this; what is counted is what it matches. It finds that a block was reused by
walking the whole trie after every step, here blocks leave the tree when they are evicted: for requests one after the
other that is the same. Of copies that requests compute at the same time only the one that was indexed first is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from longturn.cache.contract import Allocation
from longturn.cache.eviction import Usage
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.lmdeploy import BLOCK, Block, BlockTree
from longturn.cache.policies.options import tokens
from longturn.cache.radix import NO_TOKENS
from longturn.cache.slots import Runs


@dataclass(frozen=True)
class ClassicOptions:
    """What a user can set."""

    block_size: int = tokens(BLOCK, "tokens in a block (cache_block_seq_len)")


class ClassicCache(BlockTree):
    """TurboMind up to 0.14."""

    def __init__(self, options: ClassicOptions, sizes: Sizes) -> None:
        super().__init__("lmdeploy-turbomind-classic", options.block_size, sizes)
        # Blocks in memory that nothing leads to.
        self._useless: set[Block] = set()

    def _join(self, allocation: Allocation, node: Block) -> None:
        if node.locks:
            super()._join(allocation, node)
            return
        self._lock(node)
        self._abandon(node.depth, node.runs, node.usage.stamp)
        node.runs = allocation.runs.slice(node.depth, node.end)

    def _finish(self, allocation: Allocation) -> None:
        self._index(allocation, self._kept(allocation))
        rest = allocation.runs.slice(allocation.committed, len(allocation.runs))
        allocation.runs = allocation.runs.slice(0, allocation.committed)
        if len(rest):
            self._abandon(allocation.committed, rest, self._stamp + 1)
            self._stamp += len(rest) // self.page_size

    def _abandon(self, depth: int, runs: Runs, stamp: int) -> None:
        """Leave blocks in memory, to be evicted by the `stamp` of the last one."""
        block = Block(None, depth, NO_TOKENS, runs, [], Usage(stamp))
        self._useless.add(block)
        self._idle += len(runs)
        self._victims.offer(block)

    def _forget(self, node: Block) -> None:
        if node.parent is None:
            self._useless.remove(node)
        else:
            super()._forget(node)

    def _nodes(self) -> list[Block]:
        return [*super()._nodes(), *self._useless]
