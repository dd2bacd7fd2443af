"""What every cache policy offers to the scheduler. Policies differ only behind this contract.

The life of a request: `lookup` its prompt, perhaps `prefetch` while it queues, `admit` it; then for each chunk of the
prompt and each token of output `extend` before the step that computes it and `commit` behind it; at last `release` it.
Before each step of the model the engine carries out `take_transfers()` in order and reports each with `landed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from longturn.cache.events import Event
from longturn.cache.hints import Hint
from longturn.cache.radix import Tokens
from longturn.cache.slots import Runs
from longturn.cache.transfers import Fetch, Transfer


@dataclass(frozen=True, eq=False)
class Hit:
    """The longest cached prefix of `tokens` (int32 [n]) under `salt`, never all of it: the last token is computed.

    device, host, disk: tokens found in each tier, in this order from the front. arriving: some of them are being
    fetched already, so waiting beats computing. where: the policy's own note of the place.
    """

    tokens: Tokens
    salt: str
    device: int = 0
    host: int = 0
    disk: int = 0
    arriving: bool = False
    where: Any = field(default=None, repr=False)

    @property
    def total(self) -> int:
        """Tokens that need not be computed."""
        return self.device + self.host + self.disk


@dataclass(eq=False)
class Allocation:
    """The slots of one running request. Owned by the policy; others read it.

    runs: the slots of token 0, 1, ...; cached: tokens served per tier; committed: tokens that the index knows;
    limit: the most tokens it may hold; pages: whole pages within `committed`, the last of them called `last_key`;
    reported: the cached tokens that the modelled engine tells its client, where that is not what was reused;
    where: the policy's own note of the place.
    """

    id: int
    salt: str
    runs: Runs
    cached: dict[str, int]
    committed: int
    limit: int = 0
    where: Any = field(default=None, repr=False)
    pages: int = 0
    last_key: bytes = b""
    reported: int | None = None

    @property
    def reused(self) -> int:
        """Tokens that need not be computed."""
        return sum(self.cached.values())


@dataclass(frozen=True)
class TierState:
    """How full a tier is, in tokens."""

    name: str
    capacity: int
    used: int
    evictable: int = 0


@dataclass(frozen=True)
class CacheState:
    """A picture of the cache: its tiers and the most used prefixes as (tokens, hits, locks) by length."""

    policy: str
    tiers: Sequence[TierState]
    prefixes: Sequence[tuple[int, int, int]]


class PrefixCache(Protocol):
    """The contract. Nothing here does I/O and nothing may be called from two threads at once.

    longest: most tokens, prompt and output together, that one request may have: longer ones are for the caller to
    refuse. page_size: tokens in a page of the tiers below. chunk_tokens: most tokens of a prompt that the modelled
    engine computes in a step, None for all. overlap: the modelled engine launches one more decode before it sees that
    a request has ended, so that room is made, and KV exists, for the last token too.
    """

    longest: int
    page_size: int
    chunk_tokens: int | None
    overlap: bool

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        """Find the longest cached prefix of int32 [n] tokens. Mutates nothing."""

    def prefetch(self, hit: Hit) -> Fetch | None:
        """Reserve host room for the part of `hit` that lies on disk; the caller fetches it and then calls `landed`."""

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        """Lock the prefix of `hit` for a request that may produce up to `output` tokens.

        Which slots are taken now and which by `extend` is the policy's affair. Evicts as needed and lists the
        transfers that this takes. None, and nothing changed but evictions, when the device has no room. A hit that
        went stale is looked up again.
        """

    def extend(self, allocation: Allocation, length: int) -> bool:
        """Have slots for the first `length` tokens, which the next step completes (mutates the allocation).

        Evicts as needed. Called before every step of the request, whether slots are missing or not: engines stamp and
        reserve at that time. False, and nothing changed but evictions, when there is no room.
        """

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        """Make the KV of int32 [n] `tokens`, all computed by now, findable by others (mutates index and allocation).

        Where another request committed the same tokens first, the allocation moves to those slots.
        """

    def release(self, allocation: Allocation) -> None:
        """Unlock what was committed, free the other slots. The allocation must not be used any more."""

    def take_transfers(self) -> list[Transfer]:
        """The moves listed since the last call, to be carried out in order before the next step of the model."""

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        """Report that the first `n_pages` pages of a transfer arrived whole. The rest becomes a miss."""

    def hint(self, hint: Hint) -> int:
        """Act on a signal of the application; returns how many tokens it reached."""

    def clear(self, tier: str) -> int:
        """Evict all of a tier that is not in use; returns the tokens freed. Raises ConfigError for an unknown tier."""

    def state(self) -> CacheState:
        """A picture for people. Mutates nothing."""

    def events(self) -> list[Event]:
        """What happened since the last call, oldest first (a bounded number)."""

    def check_integrity(self) -> None:
        """Raises CacheCorruption when an invariant is broken. Called when idle and after every step of the tests."""
