"""No cache: every request computes its whole prompt. The baseline that all others are compared with."""

from __future__ import annotations

from longturn.cache.contract import Allocation, CacheState, Hit, TierState
from longturn.cache.events import Event
from longturn.cache.hints import Hint
from longturn.cache.radix import Tokens
from longturn.cache.slots import GROWTH, SlotPool
from longturn.cache.transfers import Fetch, Transfer
from longturn.errors import CacheCorruption


class NoCache:
    """Hands out slots and remembers nothing."""

    def __init__(self, device_tokens: int) -> None:
        self.longest, self.page_size = device_tokens, 1
        self.chunk_tokens: int | None = None
        self.overlap = False
        self._pool = SlotPool(device_tokens)
        self._allocations: dict[int, Allocation] = {}
        self._next_id = 0

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        return Hit(tokens, salt)

    def prefetch(self, hit: Hit) -> Fetch | None:
        return None

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        runs = self._pool.allocate(len(hit.tokens) + min(output, GROWTH))
        if runs is None:
            return None
        self._next_id += 1
        allocation = Allocation(self._next_id, hit.salt, runs, {}, committed=0)
        self._allocations[allocation.id] = allocation
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        missing = length - len(allocation.runs)
        if missing <= 0:
            return True
        runs = self._pool.allocate(missing, after=allocation.runs.end)
        if runs is None:
            return False
        allocation.runs.extend(runs)
        return True

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        allocation.committed = len(tokens)

    def release(self, allocation: Allocation) -> None:
        del self._allocations[allocation.id]
        self._pool.free(allocation.runs)

    def take_transfers(self) -> list[Transfer]:
        return []

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        raise CacheCorruption("a cache that lists no transfers was told that one landed")

    def hint(self, hint: Hint) -> int:
        return 0

    def clear(self, tier: str) -> int:
        return 0

    def state(self) -> CacheState:
        used = self._pool.capacity - self._pool.free_count
        return CacheState("none", [TierState("device", self._pool.capacity, used)], [])

    def events(self) -> list[Event]:
        return []

    def check_integrity(self) -> None:
        held = sum(len(allocation.runs) for allocation in self._allocations.values())
        if held + self._pool.free_count != self._pool.capacity:
            raise CacheCorruption(f"{held} slots held and {self._pool.free_count} free of {self._pool.capacity}")
