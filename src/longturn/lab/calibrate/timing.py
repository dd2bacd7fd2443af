"""Times steps of the model by themselves, and moves of pages between tiers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longturn.cache import Fetch, Load, NoCache, Run, Runs, Save, Transfer
from longturn.cache.contract import Allocation
from longturn.engine.mover import Mover
from longturn.engine.runner.contract import Runner, Span
from longturn.lab.calibrate.steps import Step
from longturn.store import KEY_BYTES, DiskStore, HostStore

# Pages of one transfer: what a short turn saves, and what a long history brings back, if it is not more than so much.
TRANSFER_PAGES = (1, 4, 16, 64, 256)
MOST_TRANSFERRED = 1 << 27


def time_step(runner: Runner, step: Step, rng: np.random.Generator) -> float:
    """Seconds of one step of random tokens, its spans laid out one behind the other from the pool's beginning on.

    Each lies in one piece, as the cache lays out what has room to grow.
    """
    spans, at = [], 0
    for span in step:
        runs = Runs([Run(at, at + span.start + span.n)])
        tokens = rng.integers(0, runner.shape.vocab_size, span.n).astype(np.int32)
        spans.append(Span(tokens, span.start, runs, logits=True, prompt=span.prompt))
        at += len(runs)
    began = time.perf_counter()
    # What is computed elsewhere has arrived when its values are here.
    runner.execute(spans)[0, 0].item()
    return time.perf_counter() - began


def time_transfers(runner: Runner, folder: Path, rounds: int) -> dict[str, list[tuple[int, float]]]:
    """(bytes, seconds) of single transfers by link. `folder` is for a disk store, and must be empty.

    "device-host": copies to the host store and back; "host-disk": fetches from disk into the host store, of files that
    the operating system may still hold in memory.
    """
    page_bytes, page_size = runner.pool.page_bytes, runner.pool.page_size
    sizes = [n for n in TRANSFER_PAGES if n * page_bytes <= MOST_TRANSFERRED]
    host = HostStore(2 * MOST_TRANSFERRED, page_bytes)
    disk = DiskStore(folder, 16 * MOST_TRANSFERRED, page_bytes)
    mover = Mover(runner.pool, host, disk)
    taken: dict[str, list[tuple[int, float]]] = {"device-host": [], "host-disk": []}
    try:
        for n in sizes * rounds:
            keys = [secrets.token_bytes(KEY_BYTES) for _ in range(n)]
            runs, n_bytes = Runs([Run(0, n * page_size)]), n * page_bytes
            allocation = Allocation(0, "", runs, {}, 0)
            for transfer in (Save(keys, runs, ("host",)), Load(keys, "host", runs, 0, 0, allocation)):
                taken["device-host"].append((n_bytes, _time_transfer(mover, transfer)))
            _time_transfer(mover, Save(keys, runs, ("disk",)))
            host.delete(keys)
            disk.flush()
            taken["host-disk"].append((n_bytes, _time_transfer(mover, Fetch(keys))))
            host.clear()
    finally:
        mover.close()
        disk.close()
        host.close()
    return taken


class _Listed(NoCache):
    """A cache that lists one transfer."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(0)
        self._transfers = [transfer]

    def take_transfers(self) -> list[Transfer]:
        transfers, self._transfers = self._transfers, []
        return transfers

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        assert n_pages == len(transfer.keys), "a page was lost on its way"


def _time_transfer(mover: Mover, transfer: Transfer) -> float:
    cache = _Listed(transfer)
    began = time.perf_counter()
    mover.carry_out(cache)
    return time.perf_counter() - began


def medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The median of each column."""
    return [float(value) for value in np.median(np.array(rounds), axis=0)]
