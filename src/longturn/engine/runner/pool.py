"""The device pool: KV of every slot, read and written by the attention, and by the page for the tiers below."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from longturn.cache import Runs

# Pages come as read-only views of a store; they are only ever copied from.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class KVPool:
    """KV of `slots` tokens: one tensor [layers, 2, slots, kv_heads, head_dim], keys before values.

    A run of slots is contiguous in every layer, so attention reads it in place and a page is a strided copy. On the CPU
    the memory is virtual until written. As bytes a page is [layers, 2, page_size, kv_heads, head_dim].
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        slots: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.page_size = page_size
        self.kv = torch.empty((layers, 2, slots, kv_heads, head_dim), dtype=dtype, device=device)
        self._page_shape = (layers, 2, page_size, kv_heads, head_dim)
        self.page_bytes = math.prod(self._page_shape) * dtype.itemsize

    @staticmethod
    def token_bytes(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of KV per token."""
        return layers * 2 * kv_heads * head_dim * dtype.itemsize

    def read(self, runs: Runs) -> npt.NDArray[np.uint8]:
        layers, _, size, heads, dim = self._page_shape
        parts = [self.kv[:, :, run.start : run.stop] for run in runs]
        tokens = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        pages = tokens.reshape(layers, 2, -1, size, heads, dim).permute(2, 0, 1, 3, 4, 5).contiguous()
        return pages.flatten(1).cpu().view(torch.uint8).numpy()

    def write(self, runs: Runs, pages: Sequence[npt.NDArray[np.uint8]], skip: int) -> None:
        at, offset = 0, skip
        for run in runs:
            slot = run.start
            while slot < run.stop:
                n = min(run.stop - slot, self.page_size - offset)
                page = torch.from_numpy(pages[at]).view(self.kv.dtype).view(self._page_shape)
                self.kv[:, :, slot : slot + n].copy_(page[:, :, offset : offset + n])
                slot, offset = slot + n, offset + n
                if offset == self.page_size:
                    at, offset = at + 1, 0
