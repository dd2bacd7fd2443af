"""Moves that take the time of their links, and always arrive whole.

As in the real mover, saves and loads are done before the next step; fetches from disk run beside it.
"""

from __future__ import annotations

from longturn.cache import Drop, Fetch, Load, PrefixCache, Save, Transfer
from longturn.engine.cost import CostModel
from longturn.engine.modeled.clock import VirtualClock
from longturn.engine.mover import Traffic


class ModeledMover:
    """Lets `clock` advance by what moves cost. page_size: tokens in a page."""

    def __init__(self, cost: CostModel, clock: VirtualClock, page_size: int) -> None:
        self.traffic = Traffic()
        self._cost = cost
        self._clock = clock
        self._page_bytes = page_size * cost.shape.token_bytes
        self._fetches: list[tuple[float, Fetch]] = []
        self._host_pages = 0
        self._host_byte_seconds = 0.0
        self._counted_at = 0.0

    @property
    def host_byte_seconds(self) -> float:
        """Memory held by pages in the host tier, times how long, up to now."""
        held = self._host_pages * self._page_bytes
        return self._host_byte_seconds + held * (self._clock() - self._counted_at)

    def carry_out(self, cache: PrefixCache) -> None:
        """Do all that `cache` has listed, in order, and report each (moves the clock)."""
        while transfers := cache.take_transfers():
            for transfer in transfers:
                self._clock.advance(self._seconds(transfer))
                self._count(transfer)
                cache.landed(transfer, len(transfer.keys))

    def start_fetch(self, cache: PrefixCache, fetch: Fetch) -> None:
        """Begin to read from disk, behind the reads that are under way."""
        self.carry_out(cache)
        began = max([self._clock(), *(time for time, _ in self._fetches)])
        self._fetches.append((began + self._link("host-disk", len(fetch.keys)), fetch))

    def finish_fetches(self, cache: PrefixCache, timeout: float = 0.0) -> bool:
        """Report the reads that are done, letting up to `timeout` pass for the first; True when any was."""
        if timeout and self._fetches:
            self._clock.until(min(self._fetches[0][0], self._clock() + timeout))
        done = [fetch for time, fetch in self._fetches if time <= self._clock()]
        self._fetches = self._fetches[len(done) :]
        for fetch in done:
            cache.landed(fetch, len(fetch.keys))
        return bool(done)

    @property
    def fetching(self) -> bool:
        """Whether any fetch is under way."""
        return bool(self._fetches)

    def close(self) -> None:
        """Nothing runs beside the engine."""

    def _count(self, transfer: Transfer) -> None:
        """Keep the books of host memory."""
        self._host_byte_seconds, self._counted_at = self.host_byte_seconds, self._clock()
        if isinstance(transfer, Save) and "host" in transfer.tiers:
            self._host_pages += len(transfer.keys)
        elif isinstance(transfer, Drop):
            self._host_pages -= len(transfer.keys)

    def _seconds(self, transfer: Transfer) -> float:
        pages = len(transfer.keys)
        match transfer:
            case Save():
                return sum(
                    self._link("device-host" if tier == "host" else "host-disk", pages) for tier in transfer.tiers
                )
            case Load():
                from_disk = self._link("host-disk", pages) if transfer.tier == "disk" else 0.0
                return from_disk + self._link("device-host", pages)
            case Fetch():
                return self._link("host-disk", pages)
            case Drop():
                return self._link("host-disk", pages) if transfer.to_disk else 0.0
            case _:
                # A copy within the device costs its memory's bandwidth, which is next to nothing here.
                return 0.0

    def _link(self, link: str, pages: int) -> float:
        n_bytes = pages * self._page_bytes
        self.traffic.add(link, n_bytes)
        return self._cost.transfer_seconds(link, n_bytes)
