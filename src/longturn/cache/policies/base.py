"""What the policies of other engines have in common, and the sizes that they are built with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from longturn.cache.contract import Allocation, CacheState, Hit, TierState
from longturn.cache.events import Event, EventLog
from longturn.cache.hints import Hint
from longturn.cache.slots import CountingPool, Pool, Runs, SlotPool
from longturn.cache.transfers import Fetch, Load, Transfer
from longturn.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """What a policy is given beside its own options, in units of `unit` tokens.

    device, host: capacities (host 0: no such tier); unit: tokens that one symbol of a prompt stands for, 1 where
    prompts are token ids; real: tensors lie in the slots. Otherwise slots are only counted, and the engine's habit of
    launching one decode too many is modelled as well (see `PrefixCache.overlap`). clock: seconds, for time limits and
    events.
    """

    device: int
    host: int = 0
    unit: int = 1
    real: bool = False
    clock: Callable[[], float] = time.monotonic

    def pool(self, capacity: int) -> Pool:
        """Slots that lie somewhere, or are only counted."""
        return SlotPool(capacity) if self.real else CountingPool(capacity)


class EnginePolicy:
    """The part of the contract that engines without hints, stores or lower tiers share. Mutated by its subclasses only.

    A subclass sets `name`, `longest` and, where they differ, `page_size`, `chunk_tokens` and `overlap`; it lists moves
    in `_transfers` and keeps `_allocations` by id.
    """

    name: str
    longest: int

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.page_size = 1
        self.chunk_tokens: int | None = None
        self.overlap = False
        self._allocations: dict[int, Allocation] = {}
        self._transfers: list[Transfer] = []
        self._events = EventLog(sizes.clock)
        self._next_id = 0

    def prefetch(self, hit: Hit) -> Fetch | None:
        return None

    def take_transfers(self) -> list[Transfer]:
        transfers, self._transfers = self._transfers, []
        return transfers

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        if n_pages < len(transfer.keys):
            self._lost(transfer, n_pages)
        elif isinstance(transfer, Load):
            self._events.record("loaded", transfer.tier, len(transfer.runs), transfer.allocation.id, transfer.first)

    def hint(self, hint: Hint) -> int:
        return 0

    def clear(self, tier: str) -> int:
        names = [state.name for state in self.state().tiers]
        if tier not in names:
            raise ConfigError(f"there is no tier called {tier!r} here: this policy has {', '.join(names)}")
        freed = self._clear(tier)
        self._events.record("cleared", tier, freed)
        return freed

    def state(self) -> CacheState:
        return CacheState(self.name, self._tiers(), [])

    def events(self) -> list[Event]:
        return self._events.take()

    def _allocate(self, hit: Hit, runs: Runs, cached: dict[str, int], output: int) -> Allocation:
        """A new allocation that holds `runs`, with what was reused per tier."""
        self._next_id += 1
        allocation = Allocation(
            self._next_id, hit.salt, runs, cached, sum(cached.values()), limit=len(hit.tokens) + output
        )
        self._allocations[allocation.id] = allocation
        for tier, n in cached.items():
            self._events.record("hit", tier, n, allocation.id)
        return allocation

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        """Only the first `n_pages` pages of a transfer arrived: the rest must become a miss."""
        raise NotImplementedError

    def _clear(self, tier: str) -> int:
        """Evict all of a tier that is not in use; returns tokens freed."""
        raise NotImplementedError

    def _tiers(self) -> list[TierState]:
        """How full each tier is."""
        raise NotImplementedError
