"""Carries out the transfers that a cache lists: bytes between the device pool, host memory and disk.

Saves, loads and drops run at once, on the engine's thread; fetches run beside it while their request waits. A tier that
fails is a miss: `carry_out` says how many leading pages arrived, and the cache deals with the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from longturn.cache import Copy, Drop, Fetch, Load, PrefixCache, Runs, Save, Transfer
from longturn.store import PageStore

PageBytes = npt.NDArray[np.uint8]
log = logging.getLogger(__name__)
_FETCH_BATCH = 64


class DevicePool(Protocol):
    """The device memory that slots address, as pages of bytes."""

    page_size: int
    page_bytes: int

    def read(self, runs: Runs) -> PageBytes:
        """A copy of the whole pages that lie in `runs`: uint8 [n_pages, page_bytes]."""

    def write(self, runs: Runs, pages: Sequence[PageBytes], skip: int) -> None:
        """Write the tokens of `pages`, without the first `skip`, to the slots `runs` (as many as there are)."""


class PageMover(Protocol):
    """What an engine asks of whoever moves its pages, really or on a virtual clock."""

    traffic: Traffic

    def carry_out(self, cache: PrefixCache) -> None:
        """Do all that `cache` has listed, in order, and report each."""

    def start_fetch(self, cache: PrefixCache, fetch: Fetch) -> None:
        """Begin to bring pages from disk into host memory."""

    def finish_fetches(self, cache: PrefixCache, timeout: float = 0.0) -> bool:
        """Report fetches that are done, waiting up to `timeout` seconds for one; True when any was."""

    @property
    def fetching(self) -> bool:
        """Whether any fetch is under way."""

    def close(self) -> None:
        """End whatever runs beside the engine."""


@dataclass
class Traffic:
    """Bytes moved per link since the start."""

    bytes: dict[str, int] = field(default_factory=dict)

    def add(self, link: str, n: int) -> None:
        """Count `n` bytes on `link`."""
        self.bytes[link] = self.bytes.get(link, 0) + n


class Mover:
    """Moves pages for one engine. `host` and `disk` may be absent."""

    def __init__(self, pool: DevicePool, host: PageStore | None, disk: PageStore | None) -> None:
        self.traffic = Traffic()
        self._pool = pool
        self._stores = {"host": host, "disk": disk}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="longturn-fetch")
        self._fetches: dict[Future[int], Fetch] = {}

    def carry_out(self, cache: PrefixCache) -> None:
        """Do all that `cache` has listed, in order, and report each."""
        while transfers := cache.take_transfers():
            for transfer in transfers:
                cache.landed(transfer, self._move(transfer))

    def start_fetch(self, cache: PrefixCache, fetch: Fetch) -> None:
        """Begin to read pages from disk into host memory."""
        self.carry_out(cache)
        self._fetches[self._reader.submit(self._fetch, fetch.keys)] = fetch

    def finish_fetches(self, cache: PrefixCache, timeout: float = 0.0) -> bool:
        """Report fetches that are done, waiting up to `timeout` seconds for one; True when any was."""
        if timeout and self._fetches:
            wait(self._fetches, timeout, return_when="FIRST_COMPLETED")
        done = [future for future in self._fetches if future.done()]
        for future in done:
            fetch = self._fetches.pop(future)
            self.traffic.add("host-disk", future.result() * self._pool.page_bytes)
            cache.landed(fetch, future.result())
        return bool(done)

    @property
    def fetching(self) -> bool:
        """Whether any fetch is under way."""
        return bool(self._fetches)

    def close(self) -> None:
        """Wait for fetches under way and end the thread."""
        self._reader.shutdown()

    def _move(self, transfer: Transfer) -> int:
        try:
            match transfer:
                case Save():
                    return self._save(transfer)
                case Load():
                    return self._load(transfer)
                case Drop():
                    return self._drop(transfer)
                case Fetch():
                    return self._fetch(transfer.keys)
                case Copy():
                    self._pool.write(transfer.target, list(self._pool.read(transfer.source)), 0)
                    return 0
        except OSError as error:
            log.warning("a %s of %d pages failed: %s", type(transfer).__name__, len(transfer.keys), error)
            return 0

    def _save(self, save: Save) -> int:
        pages, landed = self._pool.read(save.runs), len(save.keys)
        self.traffic.add("device-host", pages.nbytes)
        for tier in save.tiers:
            store = self._stores[tier]
            assert store is not None
            stored = store.put(save.keys, pages)
            if tier == "host":
                landed = stored
            else:
                self.traffic.add("host-disk", stored * self._pool.page_bytes)
        return landed

    def _load(self, load: Load) -> int:
        store = self._stores[load.tier]
        assert store is not None
        pages = _leading(store.get(load.keys))
        if pages:
            n = min(len(pages) * self._pool.page_size - load.skip, len(load.runs))
            self._pool.write(load.runs.slice(0, n), pages, load.skip)
        n_bytes = len(pages) * self._pool.page_bytes
        self.traffic.add("device-host", n_bytes)
        if load.tier == "disk":
            self.traffic.add("host-disk", n_bytes)
        return len(pages)

    def _fetch(self, keys: list[bytes]) -> int:
        """Read from disk into host memory, in batches whose memory is used again. Runs beside the engine."""
        host, disk = self._stores["host"], self._stores["disk"]
        assert host is not None
        assert disk is not None
        fetched = 0
        try:
            while fetched < len(keys):
                batch = keys[fetched : fetched + _FETCH_BATCH]
                pages = _leading(disk.get(batch))
                stored = sum(host.put([key], page[None]) for key, page in zip(batch, pages, strict=False))
                fetched += stored
                if stored < len(batch):
                    break
        except OSError as error:
            log.warning("a fetch of %d pages failed: %s", len(keys), error)
        return fetched

    def _drop(self, drop: Drop) -> int:
        host, disk = self._stores["host"], self._stores["disk"]
        if host is None:
            return len(drop.keys)
        try:
            if drop.to_disk and disk is not None:
                found = zip(drop.keys, host.get(drop.keys), strict=True)
                kept = [(key, page) for key, page in found if page is not None]
                if kept:
                    disk.put([key for key, _ in kept], np.stack([page for _, page in kept]))
        finally:
            # The cache counts on these frames, whatever became of the copy.
            host.delete(drop.keys)
        return len(drop.keys)


def _leading(pages: Sequence[PageBytes | None]) -> list[PageBytes]:
    out: list[PageBytes] = []
    for page in pages:
        if page is None:
            break
        out.append(page)
    return out
