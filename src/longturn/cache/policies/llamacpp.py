"""llama.cpp's server: a few slots that own one conversation each, and whole prompts in host memory.

Follows `get_available_slot`, `update_slots` and `try_clear_idle_slots` of tools/server/server-context.cpp and
`server_prompt_cache` of server-task.cpp, release b11434. Nothing is shared: a request reuses what the one slot that it
is given has in common with it, or the host prompt that is moved into that slot first. The idle slot with the best share
of the request wins, above a tenth, else the least recently used one; host prompts are looked at only when that choice
would lose most of the slot's content. Ratios are 32-bit floats, as there.

`longest` is the context of a slot: all cells when unified, its share otherwise; the server would cut such a request
short or fail it. A request waits while no slot is idle and, when unified, while the prompts that run would leave it no
cells; there the server starts it and fails all requests when the cells run out. Host sizes are given in tokens of a
model with 128 KiB of KV per token, and an entry's headers count. A host prompt that cannot be read empties its slot.

Left out: pinned slots, parallel samples, cache reuse by shifting, sliding windows and checkpoints, slot files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.policies.base import EnginePolicy, Sizes
from longturn.cache.policies.llamacpp_host import Entry, HostPrompts, Keys, best, ratio
from longturn.cache.policies.options import choice, tokens
from longturn.cache.radix import NO_TOKENS, Tokens, common_prefix
from longturn.cache.slots import Run, Runs
from longturn.cache.transfers import Load, Save, Transfer
from longturn.errors import CacheCorruption, ConfigError

# A slot is chosen by what it shares above this part of the request (--slot-prompt-similarity), and is saved when less
# than that part of it would be kept.
_SIMILAR, _LOSES_MOST = np.float32(0.1), np.float32(0.5)
# Most tokens of a prompt in one step (--batch-size).
_BATCH = 2048
# The model by which host sizes in tokens are turned into bytes: 32 layers, 128 KiB of KV per token (Llama 3.1 8B).
_LAYERS, _TOKEN_BYTES = 32, 128 * 1024


@dataclass(frozen=True)
class LlamaCppOptions:
    """What a user can set."""

    slots: int = choice(4, "slots, each with one conversation (--parallel)")
    unified: bool = choice(True, "slots share all cells (--kv-unified), else each has its part")
    cache_ram_tokens: int | None = tokens(
        None, "host prompts in tokens (--cache-ram: 8192 MiB); 0: none, -1: by its token limit; none: as the host has"
    )


class _Slot:
    """One conversation: int32 [n] `tokens` whose KV lies in the first n slots of `runs`.

    last_used: when its last request ended, -1 for never; allocation: the request that it serves; prompt: tokens of that
    request's prompt; loading: the move under way into it.
    """

    __slots__ = ("allocation", "id", "last_used", "loading", "prompt", "runs", "salt", "tokens")

    def __init__(self, id: int) -> None:
        self.id = id
        self.tokens: Tokens = NO_TOKENS
        self.salt = ""
        self.runs = Runs()
        self.last_used = -1
        self.allocation: Allocation | None = None
        self.prompt = 0
        self.loading: Load | None = None

    def shared(self, tokens: Tokens, salt: str) -> int:
        """How many leading tokens of a prompt it has."""
        return common_prefix(self.tokens, tokens) if salt == self.salt else 0


@dataclass(frozen=True)
class _Place:
    """What will become of a request: its slot, whether that is saved first, and the host prompt moved into it."""

    slot: _Slot
    swap: bool
    entry: Entry | None
    version: int


class LlamaCppCache(EnginePolicy):
    """See the module's text."""

    name = "llamacpp"

    def __init__(self, options: LlamaCppOptions, sizes: Sizes) -> None:
        super().__init__(sizes)
        self._unified = options.unified
        if options.slots < 1 or sizes.device < options.slots:
            raise ConfigError(f"llamacpp:slots is {options.slots}: give at least 1, and the device a block for each")
        self.longest = sizes.device if options.unified else sizes.device // options.slots
        self.chunk_tokens = max(_BATCH // sizes.unit, 1)
        self._pool = sizes.pool(sizes.device)
        self._slots = [_Slot(i) for i in range(options.slots)]
        self._host, self._host_tokens = self._host_prompts(options, sizes)
        self._uses = self._version = 0

    def _host_prompts(self, options: LlamaCppOptions, sizes: Sizes) -> tuple[HostPrompts | None, int]:
        """The host cache, None without one, and how many tokens it may hold."""
        ram = sizes.host if options.cache_ram_tokens is None else options.cache_ram_tokens
        if sizes.real and (ram > sizes.host or not sizes.host):
            ram = sizes.host
        if ram > 0:
            header = (8 if options.unified else 4 + 4 * options.slots) + 16 + 2 * _LAYERS * 12
            cell = sizes.unit * (_TOKEN_BYTES + 12)
            limit = ram * sizes.unit * _TOKEN_BYTES
            return HostPrompts(limit, lambda n: header + n * cell, True, self._list, self._events), ram
        if ram < 0:
            cap = min(sizes.device, sizes.host) if sizes.real else sizes.device
            return HostPrompts(cap, lambda n: n, False, self._list, self._events), cap
        return None, 0

    # -- finding -------------------------------------------------------------------------------------------------

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        chosen = self._choose(tokens, salt)
        if chosen is None:
            return Hit(tokens, salt)
        slot, shared, swap = chosen
        most = max(len(tokens) - 1, 0)
        entry, loaded = self._entry_for(slot, shared, tokens, salt) if swap else (None, 0)
        place = _Place(slot, swap, entry, self._version)
        if entry is None:
            return Hit(tokens, salt, device=min(shared, most), where=place)
        return Hit(tokens, salt, host=min(loaded, most) if self._fits(entry, slot) else 0, where=place)

    def _choose(self, tokens: Tokens, salt: str) -> tuple[_Slot, int, bool] | None:
        """The slot for a prompt, the tokens that they share, and whether that loses most of the slot's content."""
        idle = [slot for slot in self._slots if slot.allocation is None]
        if not idle:
            return None
        chosen, most, similarity = None, 0, _SIMILAR
        for slot in idle:
            shared = slot.shared(tokens, salt)
            if shared and (f_sim := ratio(shared, len(tokens))) > similarity:
                chosen, most, similarity = slot, shared, f_sim
        if chosen is None:
            oldest = min(idle, key=lambda slot: (slot.last_used, -slot.id))
            return oldest, oldest.shared(tokens, salt), True
        # The server goes back from the ratio to the length, which may round.
        kept = similarity * np.float32(len(tokens)) / np.float32(len(chosen.tokens))
        return chosen, most, bool(kept < _LOSES_MOST)

    def _entry_for(self, slot: _Slot, shared: int, tokens: Tokens, salt: str) -> tuple[Entry | None, int]:
        """The host prompt that would replace the content of `slot` once that is saved, and the tokens they share."""
        if self._host is None:
            return None, 0
        left = self._host.left_by(slot.tokens, slot.salt)
        keep = float(ratio(shared, len(slot.tokens))) if len(slot.tokens) else -1.0
        entries = self._host.entries if left is None else left
        return best(entries, tokens, salt, (keep, float(ratio(shared, len(tokens)))))

    def _fits(self, entry: Entry, slot: _Slot) -> bool:
        """Whether there are cells for a host prompt in place of what `slot` has."""
        room = self._pool.free_count + len(slot.runs) if self._unified else self.longest
        return len(entry.tokens) <= room

    # -- the life of an allocation -------------------------------------------------------------------------------

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        if hit.where is None or hit.where.version != self._version:
            hit = self.lookup(hit.tokens, hit.salt)
        place: _Place | None = hit.where
        if place is None or not self._has_room(len(hit.tokens)):
            return None
        allocation = self._allocate(hit, Runs(), {"device": hit.device, "host": hit.host}, output)
        slot, by = place.slot, allocation.id
        if self._host is not None:
            if place.swap:
                self._host.save(slot.tokens, slot.salt, slot.runs, by)
                if place.entry is not None:
                    self._restore(place.entry, slot, allocation)
                self._host.trim(by)
            self._put_away(slot, by)
        self._cut(slot, hit.total, by)
        allocation.where, allocation.runs = slot, slot.runs
        slot.allocation, slot.prompt, slot.salt = allocation, len(hit.tokens), hit.salt
        self._version += 1
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        missing = length - len(allocation.runs)
        if missing <= 0:
            return True
        for slot in self._slots:
            if self._pool.free_count >= missing:
                break
            if slot.allocation is None:
                self._cut(slot, 0, allocation.id)
        room = self._pool.allocate(missing, after=allocation.runs.end)
        if room is None:
            return False
        allocation.runs.extend(room)
        return True

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        allocation.where.tokens, allocation.committed = tokens, len(tokens)

    def release(self, allocation: Allocation) -> None:
        del self._allocations[allocation.id]
        slot: _Slot = allocation.where
        slot.allocation = None
        if slot.loading is not None:
            # What has not landed is not there.
            self._cut(slot, 0, None)
        self._cut(slot, len(slot.tokens), None)
        slot.tokens = slot.tokens.copy()
        slot.loading = None
        self._uses += 1
        slot.last_used = self._uses
        self._version += 1

    # -- slots and host prompts ----------------------------------------------------------------------------------

    def _has_room(self, n: int) -> bool:
        """Whether the cells suffice for a prompt of `n` tokens beside the prompts that run."""
        running = [slot for slot in self._slots if slot.allocation is not None]
        return not self._unified or sum(max(len(slot.runs), slot.prompt) for slot in running) + n <= self.longest

    def _restore(self, entry: Entry, slot: _Slot, allocation: Allocation) -> None:
        """Move a host prompt into `slot`, in place of what that has. Where it does not fit, the slot is left empty."""
        assert self._host is not None
        fits = self._fits(entry, slot)
        self._cut(slot, 0, allocation.id)
        if not fits:
            return
        runs = self._pool.allocate(len(entry.tokens))
        assert runs is not None
        slot.runs, slot.tokens = runs, entry.tokens
        slot.loading = Load(entry.keys, "host", runs, 0, 0, allocation)
        self._list(slot.loading)
        self._host.take(entry)

    def _put_away(self, chosen: _Slot, by: int) -> None:
        """Save all other idle slots (--cache-idle-slots); unified, they are emptied as well."""
        assert self._host is not None
        for slot in self._slots:
            if slot is not chosen and slot.allocation is None:
                if self._host.save(slot.tokens, slot.salt, slot.runs, by):
                    self._host.trim(by)
                if self._unified:
                    self._cut(slot, 0, by)

    def _cut(self, slot: _Slot, n: int, by: int | None) -> int:
        """Free all cells of `slot` but those of its first `n` tokens; returns how many."""
        lost, freed = slot.tokens[n:], len(slot.runs) - n
        if len(lost):
            kept = self._host is not None and self._host.contains(slot.tokens, slot.salt)
            self._events.record("evicted", "device", len(lost), by, n, "host" if kept else None)
        self._pool.free(slot.runs.slice(n, len(slot.runs)))
        slot.runs, slot.tokens = slot.runs.slice(0, n), slot.tokens[:n]
        return freed

    def _list(self, transfer: Transfer) -> None:
        self._transfers.append(transfer)

    # -- transfers, pictures, checks -----------------------------------------------------------------------------

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        for slot in self._slots:
            if slot.loading is transfer:
                slot.loading = None
        super().landed(transfer, n_pages)

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        if isinstance(transfer, Save):
            assert isinstance(transfer.keys, Keys)
            if self._host is not None:
                self._host.lose(transfer.keys.entry)
        elif isinstance(transfer, Load):
            allocation, slot = transfer.allocation, transfer.allocation.where
            self._events.record("failed", "host", len(transfer.keys), allocation.id)
            if slot.allocation is allocation:
                slot.tokens, allocation.committed = NO_TOKENS, 0
                allocation.cached["host"] = 0
        self._version += 1

    def _clear(self, tier: str) -> int:
        self._version += 1
        if tier == "host":
            assert self._host is not None
            return self._host.clear()
        return sum(self._cut(slot, 0, None) for slot in self._slots if slot.allocation is None)

    def _tiers(self) -> list[TierState]:
        used = self._pool.capacity - self._pool.free_count
        idle = sum(len(slot.runs) for slot in self._slots if slot.allocation is None)
        tiers = [TierState("device", self._pool.capacity, used, idle)]
        if self._host is not None:
            tiers.append(TierState("host", self._host_tokens, self._host.used, self._host.used))
        return tiers

    def check_integrity(self) -> None:
        held: list[Run] = []
        running = [slot.allocation for slot in self._slots if slot.allocation is not None]
        if {allocation.id for allocation in running} != set(self._allocations):
            raise CacheCorruption(f"{len(running)} slots are busy with {len(self._allocations)} requests")
        for slot in self._slots:
            held += slot.runs
            allocation, where = slot.allocation, f"slot {slot.id}"
            n = len(slot.runs) if allocation is None else allocation.committed
            if len(slot.tokens) != n:
                raise CacheCorruption(f"{where} holds {len(slot.tokens)} tokens in {n} cells")
            if allocation is not None and (allocation.runs is not slot.runs or allocation.where is not slot):
                raise CacheCorruption(f"{where} and its request {allocation.id} disagree on the cells")
            if allocation is None and slot.loading is not None:
                raise CacheCorruption(f"{where} is idle while it is loaded")
            if len(slot.runs) > self.longest:
                raise CacheCorruption(f"{where} has {len(slot.runs)} cells, more than its context of {self.longest}")
        self._pool.check(held)
        if self._host is not None:
            self._host.check()
