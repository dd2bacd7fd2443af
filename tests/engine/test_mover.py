"""The mover over a real pool: what tests of the tiers do not reach."""

from __future__ import annotations

from typing import Any

import torch

from longturn.cache import Copy, Run, Runs, Transfer
from longturn.engine.mover import Mover
from longturn.engine.runner.pool import KVPool


class Listed:
    """A cache that lists some transfers once."""

    def __init__(self, *transfers: Transfer) -> None:
        self.transfers = list(transfers)
        self.done: list[tuple[Transfer, int]] = []

    def take_transfers(self) -> list[Transfer]:
        transfers, self.transfers = self.transfers, []
        return transfers

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        self.done.append((transfer, n_pages))


def test_a_copy_takes_the_leading_tokens_and_nothing_else() -> None:
    pool = KVPool(2, 1, 4, slots=24, page_size=4, dtype=torch.float32, device=torch.device("cpu"))
    pool.kv.copy_(torch.arange(pool.kv.numel()).view(pool.kv.shape))
    before = pool.kv.clone()
    source, target = Runs([Run(20, 24), Run(0, 4)]), Runs([Run(9, 12), Run(16, 18)])
    copy = Copy(source, target)
    cache: Any = Listed(copy)
    mover = Mover(pool, None, None)
    mover.carry_out(cache)
    mover.close()
    assert cache.done == [(copy, 0)]
    before[:, :, [9, 10, 11, 16, 17]] = before[:, :, [20, 21, 22, 23, 0]]
    assert torch.equal(pool.kv, before)
