"""vLLM with its host tier (OffloadingConnector): blocks are copied to host memory soon after they are computed.

Follows vLLM 0.33: `distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` and `v1/kv_offload/cpu`, on top of
the device's rules in `vllm`. What the device has not is looked for in host memory, which may cover the whole prompt;
then its last token is computed all the same, but reported as cached. Loaded blocks stay in host memory. A request that
loads nothing shows the host its prompt from the first block on, which keeps that fresh; one that loads shows only what
follows. Output is offered only if `offload_prompt_only` is off. An offer is taken whole or not at all.

Left out: other connectors and tiers, chunks of several blocks, transfers that take time while others go on, limits per
request. Where it differs: loaded blocks can be found when they have arrived, not as soon as that is planned; a prompt
computed in several steps is offered in as many parts; of two requests at once the one that offers or ends later counts
as the newer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from longturn.cache.blocks import bytes_keys, key_bytes
from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.options import choice
from longturn.cache.policies.vllm import Place, Table, VllmCache, VllmOptions
from longturn.cache.policies.vllm_host import HostTier, Visit
from longturn.cache.radix import Tokens
from longturn.cache.transfers import Drop, Load, Save, Transfer


@dataclass(frozen=True)
class VllmOffloadOptions(VllmOptions):
    """What users set."""

    host_eviction: Literal["lru", "arc"] = choice("lru", "order in which host memory is given up")
    offload_prompt_only: bool = choice(True, "keep output out of host memory until a prompt repeats it")
    store_threshold: int = choice(0, "store a block when it is offered for so many times; 0: at once")


class VllmOffloadCache(VllmCache):
    """See the module's text."""

    name = "vllm-offload"

    def __init__(self, options: VllmOffloadOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self._prompt_only = options.offload_prompt_only
        self._host = HostTier(sizes.host // self._size, options.host_eviction, options.store_threshold)
        # By allocation: its prompt's length, and what it has used of host memory.
        self._visits: dict[int, tuple[int, Visit]] = {}

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        hit = super().lookup(tokens, salt)
        place: Place = hit.where
        on_host = self._host.match(place.keys, len(place.blocks))
        host = min(on_host * self._size, len(tokens) - 1 - hit.device)
        return replace(hit, host=host, where=place._replace(on_host=on_host))

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        if hit.where.version != self._version:
            hit = self.lookup(hit.tokens, hit.salt)
        allocation = super().admit(hit, output)
        if allocation is None:
            return None
        visit, place = Visit(), hit.where
        if place.on_host:
            first = len(place.blocks)
            stop = first + place.on_host
            visit = self._host.load(place.keys, first, stop)
            runs = allocation.runs.slice(first * self._size, stop * self._size)
            keys = key_bytes(place.keys[:, first:stop])
            self._transfers.append(Load(keys, "host", runs, 0, first * self._size, allocation))
            if stop * self._size > allocation.reused:
                allocation.reported = stop * self._size
        self._visits[allocation.id] = len(hit.tokens), visit
        return allocation

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        super().commit(allocation, tokens)
        n_prompt, visit = self._visits[allocation.id]
        stop = min(len(tokens), n_prompt if self._prompt_only else len(tokens)) // self._size
        if stop <= visit.stop or not self._host.n_chunks:
            return
        table: Table = allocation.where
        stored, evicted = self._host.offer(table.keys, visit, stop)
        if evicted.shape[1]:
            self._transfers.append(Drop(key_bytes(evicted)))
            self._events.record("evicted", "host", evicted.shape[1] * self._size, allocation.id)
        if len(stored):
            runs = self._slots(table.blocks[stored], 0)
            self._transfers.append(Save(key_bytes(table.keys[:, stored]), runs, ("host",)))
            self._events.record("stored", "host", len(runs), allocation.id, int(stored[0]) * self._size)
            self._version += 1

    def release(self, allocation: Allocation) -> None:
        super().release(allocation)
        _, visit = self._visits.pop(allocation.id)
        self._host.end(allocation.where.keys, visit)

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        if isinstance(transfer, Load) and transfer.allocation.id in self._allocations:
            self._enter(transfer.allocation, transfer.first // self._size + n_pages)
        super().landed(transfer, n_pages)

    def check_integrity(self) -> None:
        super().check_integrity()
        self._host.check()

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        lost = transfer.keys[n_pages:]
        self._host.lose(bytes_keys(lost))
        self._transfers.append(Drop(lost))
        self._version += 1
        self._events.record("failed", "host", len(lost) * self._size)
        if isinstance(transfer, Load):
            allocation = transfer.allocation
            allocation.cached["host"] = min(n_pages * self._size, allocation.cached.get("host", 0))
            allocation.reported = None
            if allocation.id in self._visits:
                # What it could not load it will compute, and may offer.
                self._visits[allocation.id][1].cut(n_pages)

    def _clear(self, tier: str) -> int:
        if tier == "device":
            return super()._clear(tier)
        freed = self._host.used * self._size
        self._transfers.append(Drop(key_bytes(self._host.clear())))
        self._version += 1
        return freed

    def _tiers(self) -> list[TierState]:
        used = self._host.used * self._size
        host = TierState("host", self._host.n_chunks * self._size, used, used)
        return [*super()._tiers(), host] if host.capacity else super()._tiers()
