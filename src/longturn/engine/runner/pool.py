"""The device pool: KV of every slot, read and written by the attention, and by the page for the tiers below."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from longturn.cache import Runs
from longturn.engine.runner.memory import huge_pages
from longturn.store import Ahead

# Pages come as read-only views of a store; they are only ever copied from.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class KVPool:
    """KV of `slots` tokens: one tensor [layers, 2, slots, kv_heads, head_dim], keys before values.

    A run of slots is contiguous in every layer, so attention reads it in place and a page is a strided copy. On the CPU
    the memory is virtual until it is written, or made ready for that by `ahead`. As bytes a page is
    [layers, 2, page_size, kv_heads, head_dim].
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
        shape = layers, 2, slots, kv_heads, head_dim
        if device.type == "cpu":
            self.kv = huge_pages(math.prod(shape), dtype).view(shape)
        else:
            self.kv = torch.empty(shape, dtype=dtype, device=device)
        self._page_shape = (layers, 2, page_size, kv_heads, head_dim)
        self.page_bytes = math.prod(self._page_shape) * dtype.itemsize
        # The same memory as bytes [layers, 2, slots, bytes per token, layer and side], on the CPU.
        self._bytes: npt.NDArray[np.uint8] | None = None
        self.ahead: Ahead | None = None
        if device.type == "cpu":
            self._bytes = self.kv.view(torch.uint8).flatten(3).numpy()
            sides = [side.data_ptr() for side in self.kv.flatten(0, 1)]
            self.ahead = Ahead(sides, slots, self._bytes.shape[3])

    @staticmethod
    def token_bytes(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of KV per token."""
        return layers * 2 * kv_heads * head_dim * dtype.itemsize

    def read(self, runs: Runs) -> npt.NDArray[np.uint8]:
        if self._bytes is None:
            return self._read_device(runs)
        # By numpy on the CPU: torch would split each small copy over its threads and wait for all of them.
        n_pages, at = len(runs) // self.page_size, 0
        layers, row = self._bytes.shape[0], self._bytes.shape[3]
        out = np.empty((n_pages, layers, 2, self.page_size, row), np.uint8)
        tokens = out.transpose(1, 2, 0, 3, 4)
        for run in runs:
            slot = run.start
            while slot < run.stop:
                page, offset = divmod(at, self.page_size)
                n = min(run.stop - slot, self.page_size - offset)
                if n == self.page_size:
                    n = (run.stop - slot) // n * n
                    whole = self._bytes[:, :, slot : slot + n].reshape(layers, 2, -1, self.page_size, row)
                    tokens[:, :, page : page + n // self.page_size] = whole
                else:
                    tokens[:, :, page, offset : offset + n] = self._bytes[:, :, slot : slot + n]
                slot, at = slot + n, at + n
        return out.reshape(n_pages, self.page_bytes)

    def write(self, runs: Runs, pages: Sequence[npt.NDArray[np.uint8]], skip: int) -> None:
        at, offset = 0, skip
        for run in runs:
            slot = run.start
            while slot < run.stop:
                n = min(run.stop - slot, self.page_size - offset)
                if self._bytes is None:
                    page = torch.from_numpy(pages[at]).view(self.kv.dtype).view(self._page_shape)
                    self.kv[:, :, slot : slot + n].copy_(page[:, :, offset : offset + n])
                else:
                    rows = pages[at].reshape(*self._bytes.shape[:2], self.page_size, -1)
                    self._bytes[:, :, slot : slot + n] = rows[:, :, offset : offset + n]
                slot, offset = slot + n, offset + n
                if offset == self.page_size:
                    at, offset = at + 1, 0

    def _read_device(self, runs: Runs) -> npt.NDArray[np.uint8]:
        layers, _, size, heads, dim = self._page_shape
        tokens = torch.cat([self.kv[:, :, run.start : run.stop] for run in runs], dim=2)
        pages = tokens.reshape(layers, 2, -1, size, heads, dim).permute(2, 0, 1, 3, 4, 5).contiguous()
        return pages.flatten(1).cpu().view(torch.uint8).numpy()
