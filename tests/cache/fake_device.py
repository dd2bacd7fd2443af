"""A device whose KV can be checked: the value at a position is a hash of all tokens up to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longturn.cache import Allocation, Runs

MODULUS = (1 << 61) - 1


def true_kv(tokens: Sequence[int], salt: str = "") -> npt.NDArray[np.int64]:
    """What the KV of each position must be: int64 [n]."""
    value, out = len(salt) * 7919 + sum(map(ord, salt)), []
    for token in tokens:
        value = (value * 1_000_003 + int(token) + 1) % MODULUS
        out.append(value)
    return np.array(out, dtype=np.int64)


class FakeDevice:
    """A pool of one int64 per slot; pages of them travel as bytes."""

    def __init__(self, capacity: int, page_size: int) -> None:
        self.memory = np.full(capacity, -1, dtype=np.int64)
        self.page_size = page_size
        self.page_bytes = page_size * 8

    def slots(self, runs: Runs) -> npt.NDArray[np.int64]:
        return np.concatenate([np.arange(run.start, run.stop) for run in runs] or [np.empty(0, dtype=np.int64)])

    def read(self, runs: Runs) -> npt.NDArray[np.uint8]:
        values = self.memory[self.slots(runs)]
        return values.view(np.uint8).reshape(-1, self.page_bytes).copy()

    def write(self, runs: Runs, pages: Sequence[npt.NDArray[np.uint8]], skip: int) -> None:
        values = np.concatenate([page.view(np.int64) for page in pages])
        self.memory[self.slots(runs)] = values[skip : skip + len(runs)]

    def compute(self, allocation: Allocation, tokens: Sequence[int], start: int, stop: int) -> None:
        self.memory[self.slots(allocation.runs.slice(start, stop))] = true_kv(tokens, allocation.salt)[start:stop]

    def holds(self, allocation: Allocation, tokens: Sequence[int], n: int) -> bool:
        found = self.memory[self.slots(allocation.runs.slice(0, n))]
        return bool((found == true_kv(tokens, allocation.salt)[:n]).all())
