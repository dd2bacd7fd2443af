"""Memory in huge pages: a CPU reads through them a third faster, since it need not look up a page every 4 KiB."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

import torch
from torch import Tensor, nn

_BLOCK = 32 << 20
_ALIGNED = 64


def huge_pages(n: int, dtype: torch.dtype) -> Tensor:
    """n numbers in pages that are huge where the system allows it, and take no memory until they are written.

    Raises OSError when there is no room.
    """
    memory = mmap.mmap(-1, n * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A kernel without them says so.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


def own_memory(model: nn.Module) -> None:
    """Copy what parameters are left in `model` (mutates it), so that the file they were read from is let go.

    All of it would stay in memory for the smallest of them.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def give_back() -> None:
    """Give the system back what loading took and nobody holds any more."""
    # Only glibc keeps so much.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Weights:
    """Memory for weights, which are too small for huge pages of their own. It is never taken back."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.bfloat16)

    def take(self, n: int) -> Tensor:
        """n bfloat16 numbers, aligned to 64 bytes."""
        numbers = -(-n // _ALIGNED) * _ALIGNED
        if numbers > len(self._rest):
            self._rest = huge_pages(max(numbers, _BLOCK // torch.bfloat16.itemsize), torch.bfloat16)
        piece, self._rest = self._rest[:n], self._rest[numbers:]
        return piece

    def keep(self, weights: Tensor) -> Tensor:
        """The same numbers, in order, in memory of this kind."""
        n = weights.numel()
        kept = self.take(-(-n * weights.itemsize // torch.bfloat16.itemsize)).view(weights.dtype)[:n]
        return kept.copy_(weights.reshape(-1))
