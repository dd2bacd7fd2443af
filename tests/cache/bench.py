"""A cache over a fake device whose KV can be checked, one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from longturn.cache import Allocation, Drop, Event, Fetch, Hint, LongturnCache, LongturnOptions, Save, Transfer
from longturn.cache.radix import Tokens
from longturn.engine.mover import Mover
from longturn.store import HostStore
from tests.cache.fake_device import FakeDevice

PAGE = 4


def array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def text(n: int, seed: int = 0) -> list[int]:
    """`n` tokens; different seeds share none."""
    return [1000 * seed + i for i in range(n)]


class Bench:
    """`host` and `disk` are in pages; what the cache lists is carried out and remembered in `moved`."""

    def __init__(self, device: int = 100, host: int = 0, disk: int = 0, **options: Any) -> None:
        self.now = 0.0
        self.device = FakeDevice(device, PAGE)
        size = self.device.page_bytes
        self.host = HostStore(host * size, size) if host else None
        self.disk = HostStore(disk * size, size) if disk else None
        self.cache = LongturnCache(
            LongturnOptions(device, host, PAGE, fingerprint="fake", **options), self.disk, clock=lambda: self.now
        )
        self.mover = Mover(self.device, self.host, self.disk)
        self.moved: list[Transfer] = []

    def carry_out(self) -> None:
        while transfers := self.cache.take_transfers():
            for transfer in transfers:
                self.moved.append(transfer)
                self.cache.landed(transfer, self.mover._move(transfer))
        self.cache.check_integrity()

    def admit(self, tokens: Sequence[int], new: int = 0, salt: str = "") -> Allocation | None:
        """Admit, and bring pages up."""
        hit = self.cache.lookup(array(tokens), salt)
        allocation = self.cache.admit(hit, new)
        self.carry_out()
        if allocation is not None:
            assert self.device.holds(allocation, tokens, allocation.reused)
        return allocation

    def compute(self, allocation: Allocation, tokens: Sequence[int], n: int | None = None) -> None:
        """Compute and commit the first `n` tokens."""
        n = len(tokens) if n is None else n
        self.device.compute(allocation, tokens, min(allocation.reused, n), n)
        self.cache.commit(allocation, array(tokens[:n]))
        self.carry_out()
        assert self.device.holds(allocation, tokens, n)

    def turn(self, tokens: Sequence[int], salt: str = "") -> dict[str, int]:
        """A whole life; returns what was served from each tier."""
        allocation = self.admit(tokens, salt=salt)
        assert allocation is not None
        cached = {tier: n for tier, n in allocation.cached.items() if n}
        self.compute(allocation, tokens)
        self.cache.release(allocation)
        self.carry_out()
        return cached

    def found(self, tokens: Sequence[int], salt: str = "") -> dict[str, int]:
        """What a lookup finds of all of `tokens` in each tier."""
        hit = self.cache.lookup(array([*tokens, -1]), salt)
        return {tier: n for tier in ("device", "host", "disk") if (n := getattr(hit, tier))}

    def clear(self, *tiers: str) -> None:
        for tier in tiers:
            self.cache.clear(tier)
            self.carry_out()

    def hint(self, kind: Any, tokens: Sequence[int], *range_: int, **more: Any) -> int:
        reached = self.cache.hint(Hint(kind, array(tokens), *range_, **more))
        self.cache.check_integrity()
        return reached

    def used(self) -> dict[str, int]:
        return {tier.name: tier.used for tier in self.cache.state().tiers}

    def events(self, *kinds: str) -> list[Event]:
        return [event for event in self.cache.events() if not kinds or event.kind in kinds]

    def saves(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(len(move.keys), move.tiers) for move in self.moved if isinstance(move, Save)]

    def drops(self) -> list[tuple[int, bool]]:
        return [(len(move.keys), move.to_disk) for move in self.moved if isinstance(move, Drop)]

    def fetch(self, tokens: Sequence[int], salt: str = "") -> Fetch | None:
        """Begin a fetch; `arrive` ends it."""
        fetch = self.cache.prefetch(self.cache.lookup(array(tokens), salt))
        self.carry_out()
        return fetch

    def arrive(self, fetch: Fetch) -> None:
        self.cache.landed(fetch, self.mover._move(fetch))
        self.carry_out()
