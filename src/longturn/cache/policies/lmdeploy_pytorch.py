"""LMDeploy's PyTorch engine: blocks of 64 tokens, taken ahead of need and indexed late while tokens are generated.

Follows lmdeploy/pytorch/paging of InternLM/lmdeploy 0.16.0 (block_trie, kv_lifecycle, scheduler), for text without
adapters:

- Whole blocks are reused, fewer than the prompt has tokens: a repeated prompt computes its last 1 to 64 tokens.
- Blocks are taken for 16 tokens more than needed (`prefill_interval`). Only when new ones are taken during generation
  are those indexed that have filled up; a block that fills while the next one is there already is indexed at the next
  occasion or never, and nothing is at the end.
- Where a block with the same content is indexed already, the request moves to that and frees its own.
- Leaves that nobody uses go first, least recently used before others; only as many as are missing.

Where it cannot be exact: the engine's clock counts whole seconds and breaks ties by memory address. Here every use has
a stamp of its own, the ideal that the engine stays up to 2.6% below. `device_tokens` are the usable ones, without the
block that the engine reserves. It ends a session one block before these are full, here it may use them all. Left out:
sliding windows, recurrent state, adapters.
"""

from __future__ import annotations

from dataclasses import dataclass

from longturn.cache.contract import Allocation
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.lmdeploy import BLOCK, BlockTree, Place
from longturn.cache.policies.options import tokens

_AHEAD = 16


@dataclass(frozen=True)
class PyTorchOptions:
    """What a user can set."""

    block_size: int = tokens(BLOCK, "tokens in a block")


class PyTorchCache(BlockTree):
    """The PyTorch engine of LMDeploy 0.16."""

    def __init__(self, options: PyTorchOptions, sizes: Sizes) -> None:
        super().__init__("lmdeploy-pytorch", options.block_size, sizes)
        self._ahead = -(-_AHEAD // sizes.unit)

    def _needed(self, prompt: int) -> int:
        return min(self._whole_blocks(prompt + self._ahead), self.longest)

    def extend(self, allocation: Allocation, length: int) -> bool:
        have = len(allocation.runs)
        if length <= have:
            return True
        ahead = min(self._whole_blocks(length - 1 + self._ahead), self.longest)
        if not (self._grow(allocation, ahead - have) or self._grow(allocation, self._whole_blocks(length) - have)):
            return False
        place: Place = allocation.where
        self._index(allocation, min(length - 1, len(place.tokens)))
        return True
