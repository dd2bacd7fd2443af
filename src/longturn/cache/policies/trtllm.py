"""TensorRT-LLM's V1 block manager: a trie of blocks with reuse in part, priorities, and a host tier by swapping.

Follows `batch_manager/kvCacheManager.cpp` and `evictionPolicy.cpp` (1.3 series, PyTorch path, one window, one beam):

- All but the last token of a prompt is looked up, block by block. Where no block fits as a whole, the one that shares
  most tokens is used in part: copied if it is in use or has others below it, else taken out of the trie and written on.
- Prompts are stored, whole blocks only, when they are computed; at the end of a request prompt and output, with the
  last block that is not full. What is there already is not stored again: the copy is stale and ages like the rest.
- Blocks become idle from the last to the first, at the back of the queue of their priority. A block that is handed out
  takes all that is below it out of the trie. With a host tier it changes places with the oldest block there instead,
  stale or not; a hit there brings it back up, and the place that it leaves goes to the back of the host's queue.
- A request is admitted when its prompt and all its output will fit: nobody is preempted.

Hints stand for `KvCacheRetentionConfig`, on the whole blocks that are in the cache: `pin` is the highest priority and
`expect` one halfway to it, both for their seconds; `priority` adds its level to the default, `release` and `supersede`
are the lowest.

Left out: V2, several windows, beams, LoRA, multimodal keys, connectors, disk. Where it is not exact: of blocks that
share equally many tokens the newest is taken, the engine's order is that of a hash map; it asks priority 30 of blocks
that go to the host, as the engine's code does, where its documentation says 35. `lookup` does not foresee that bringing
up one block of a hit may push out a later one; `admit` then reuses less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from longturn.cache.blocks import NO_BLOCKS, NO_KEYS, Ids, Keys, PrefixKeys
from longturn.cache.contract import Allocation, Hit, TierState
from longturn.cache.hints import Hint
from longturn.cache.policies.base import EnginePolicy, Sizes
from longturn.cache.policies.options import choice, tokens
from longturn.cache.policies.trtllm_memory import BlockMemory
from longturn.cache.policies.trtllm_queues import DEFAULT, HIGHEST, LOWEST
from longturn.cache.radix import NO_TOKENS, Tokens
from longturn.cache.slots import Runs
from longturn.cache.transfers import Copy, Load, Save, Transfer
from longturn.errors import CacheCorruption, ConfigError


@dataclass(frozen=True)
class TrtllmOptions:
    """What users set."""

    tokens_per_block: int = tokens(32, "tokens in a block", least=1)
    partial_reuse: bool = choice(True, "reuse the leading tokens of a block that does not fit as a whole")
    copy_on_partial_reuse: bool = choice(True, "copy such a block where it cannot be taken over")


class Place(NamedTuple):
    """Where a hit was found: keys of the prompt's whole blocks, the blocks that hold the first ones, in the version."""

    keys: Keys
    blocks: Ids
    version: int


@dataclass(eq=False)
class Table:
    """The blocks of a running request, and the keys of those that are whole.

    anchored: how many of the leading ones are in the trie themselves, not as a copy of one that is; prompt: tokens of
    its prompt; tokens: all that is computed.
    """

    blocks: Ids
    keys: Keys
    anchored: int
    prompt: int
    tokens: Tokens


class TrtllmCache(EnginePolicy):
    """See the module's text."""

    name = "trtllm"

    def __init__(self, options: TrtllmOptions, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.page_size = self._size = options.tokens_per_block
        self._partial, self._copies = options.partial_reuse, options.copy_on_partial_reuse
        self._n_device, self._n_host = sizes.device // self._size, sizes.host // self._size
        if not self._n_device:
            raise ConfigError(
                f"the device has {sizes.device * sizes.unit} tokens, less than a block of {self._size * sizes.unit}: "
                "give more, or make tokens_per_block smaller"
            )
        self.longest = self._n_device * self._size
        self._names = PrefixKeys(self._size)
        self._memory = BlockMemory(
            self._n_device, self._n_host, self._size, real=sizes.real, clock=sizes.clock, events=self._events
        )
        self._trie = self._memory.trie
        self._version = 0

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        sought = tokens[: max(len(tokens) - 1, 0)]
        keys = self._names.extend(NO_KEYS, sought, salt)
        blocks = self._trie.match(keys)
        loading = self._memory.loading[blocks]
        arriving = bool(loading.any())
        if arriving:
            # What is on its way to another request may yet be lost.
            blocks = blocks[: int(loading.argmax())]
        below = int(np.count_nonzero(self._memory.on_host(blocks)))
        found = {"device": (len(blocks) - below) * self._size, "host": below * self._size}
        if not arriving and (part := self._part(blocks, salt, sought)) is not None:
            block, n = part
            found["host" if self._memory.on_host(np.array([block]))[0] else "device"] += n
        return Hit(tokens, salt, **found, arriving=arriving, where=Place(keys, blocks, self._version))

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        self._memory.expire()
        if hit.where.version != self._version:
            hit = self.lookup(hit.tokens, hit.salt)
        n, place = len(hit.tokens), hit.where
        used = int(np.count_nonzero(self._memory.refs[place.blocks]))
        if self._blocks(n + output) - used > self._memory.idle - self._reserved():
            return None
        allocation = self._allocate(hit, Runs(), {}, output)
        whole = self._take_whole(place.blocks, allocation)
        table = Table(whole, place.keys, len(whole), n, NO_TOKENS)
        if not hit.arriving:
            table.blocks = np.concatenate((whole, self._take_part(whole, hit, allocation)))
        n_found = len(table.blocks)
        table.blocks = np.concatenate((table.blocks, self._memory.fresh(self._blocks(n) - n_found)))
        # A block that will only have the last token has none yet, by the engine's count.
        self._memory.filled[table.blocks] = np.arange(len(table.blocks)) * self._size < n - 1
        allocation.runs, allocation.where = self._memory.runs(table.blocks), table
        allocation.committed = table.anchored * self._size
        self._version += 1
        for tier, reused in allocation.cached.items():
            self._events.record("hit", tier, reused, allocation.id)
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        if length <= len(allocation.runs):
            return True
        self._memory.expire()
        table: Table = allocation.where
        missing = self._blocks(length) - len(table.blocks)
        if missing > self._memory.idle:
            return False
        blocks = self._memory.fresh(missing)
        allocation.runs.extend(self._memory.runs(blocks, len(allocation.runs)))
        table.blocks = np.concatenate((table.blocks, blocks))
        self._version += 1
        return True

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        table: Table = allocation.where
        before = len(table.tokens)
        if len(tokens) <= before:
            return
        table.tokens = tokens
        if before < table.prompt <= len(tokens):
            # A block whose last token is the prompt's last is stored at the end only.
            self._store(allocation, tokens[: table.prompt - 1], part=False)

    def release(self, allocation: Allocation) -> None:
        table: Table = allocation.where
        self._store(allocation, table.tokens, part=True)
        del self._allocations[allocation.id]
        self._memory.release(table.blocks)
        self._version += 1

    def take_transfers(self) -> list[Transfer]:
        transfers, self._memory.transfers = self._memory.transfers, []
        return transfers

    def landed(self, transfer: Transfer, n_pages: int) -> None:
        if isinstance(transfer, Load):
            self._memory.loading[self._loaded(transfer)] = False
        super().landed(transfer, n_pages)

    def hint(self, hint: Hint) -> int:
        stop = len(hint.tokens) if hint.stop is None else hint.stop
        blocks = self._trie.match(self._names.extend(NO_KEYS, hint.tokens[:stop], hint.salt))
        blocks = blocks[self._blocks(hint.start) :]
        match hint.kind:
            case "pin":
                self._memory.prefer(blocks, HIGHEST, hint.seconds)
            case "expect":
                self._memory.prefer(blocks, (DEFAULT + HIGHEST) // 2, hint.seconds)
            case "priority":
                self._memory.prefer(blocks, max(LOWEST, min(DEFAULT + hint.level, HIGHEST)), None)
            case "release" | "supersede":
                self._memory.prefer(blocks, LOWEST, None)
        return len(blocks) * self._size

    def check_integrity(self) -> None:
        tables: list[Table] = [allocation.where for allocation in self._allocations.values()]
        self._memory.check(table.blocks for table in tables)
        for allocation in self._allocations.values():
            table = allocation.where
            anchored = table.blocks[: table.anchored]
            if not np.array_equal(self._trie.match(table.keys[:, : table.anchored]), anchored):
                raise CacheCorruption("a running request has lost a block that others may find")
            if len(allocation.runs) != len(table.blocks) * self._size:
                raise CacheCorruption("a running request has more or fewer slots than its blocks")

    # -- taking what was found -----------------------------------------------------------------------------------

    def _take_whole(self, found: Ids, allocation: Allocation) -> Ids:
        """Use the blocks of a hit; fewer if bringing up some of them has pushed out the rest."""
        at = 0
        while at < len(found):
            rest = found[at:]
            below = self._memory.on_host(rest)
            n = int((below != below[0]).argmax()) or len(rest)
            if below[0]:
                first = at * self._size
                n = self._memory.bring_up(rest[:n], rest, first, n * self._size, allocation)
            else:
                self._memory.use(rest[:n])
            self._count(allocation, "host" if below[0] else "device", n * self._size)
            at += n
            lost = ~self._trie.holds[found[at:]]
            if lost.any():
                found = found[: at + int(lost.argmax())]
        return found

    def _take_part(self, whole: Ids, hit: Hit, allocation: Allocation) -> Ids:
        """Use a block that fits in part behind those that fit as a whole, or a copy of it; none if there is none."""
        part = self._part(whole, hit.salt, hit.tokens[:-1])
        if part is None:
            return NO_BLOCKS
        block, n = part
        memory, source, first = self._memory, np.array([block]), len(whole) * self._size
        below = bool(memory.on_host(source)[0])
        if memory.refs[block] == 0 and self._trie.leaf(block):
            self._trie.detach(source)
            if below:
                memory.bring_up(source, source, first, n, allocation)
            else:
                memory.use(source)
            own = source
        else:
            own = memory.fresh(1)
            if memory.on_host(source)[0]:
                if not self._trie.holds[block]:
                    # Its place on the host was needed for what made room for the copy.
                    return own
                memory.load(source, own, n, first, allocation)
            elif own[0] != block:
                memory.transfers.append(Copy(memory.runs(source), memory.runs(own).slice(0, n)))
        self._count(allocation, "host" if below else "device", n)
        return own

    def _part(self, whole: Ids, salt: str, tokens: Tokens) -> tuple[int, int] | None:
        """The block that best continues `whole` with `tokens`, and how many it has of them."""
        piece = tokens[len(whole) * self._size : (len(whole) + 1) * self._size]
        parent = int(whole[-1]) if len(whole) else None
        for block, n in self._trie.partial(parent, salt, piece):
            exact = n == len(piece) == self._trie.n_tokens[block]
            idle = self._memory.refs[block] == 0 and self._trie.leaf(block)
            if (exact or self._partial) and (idle or self._copies) and not self._memory.loading[block]:
                return block, n
        return None

    def _count(self, allocation: Allocation, tier: str, n: int) -> None:
        allocation.cached[tier] = allocation.cached.get(tier, 0) + n

    def _blocks(self, n_tokens: int) -> int:
        return -(-n_tokens // self._size)

    def _reserved(self) -> int:
        """Blocks that running requests will still need."""
        return sum(max(self._blocks(a.limit) - len(a.where.blocks), 0) for a in self._allocations.values())

    # -- storing -------------------------------------------------------------------------------------------------

    def _store(self, allocation: Allocation, tokens: Tokens, *, part: bool) -> None:
        """Put into the trie what it lacks of `tokens`, which are computed; with `part` also a block not yet full."""
        table: Table = allocation.where
        if not len(tokens):
            return
        salt, at, n = allocation.salt, table.anchored, len(tokens) // self._size
        table.keys = self._names.extend(table.keys, tokens, salt)
        there = self._trie.match(table.keys[:, at:n])
        own = there == table.blocks[at : at + len(there)]
        table.anchored += len(there) if own.all() else int((~own).argmax())
        at += len(there)
        parent = int(there[-1]) if len(there) else int(table.blocks[at - 1]) if at else None
        blocks, keys = table.blocks[at:n], table.keys[:, at:n]
        stop = n * self._size
        if part and len(tokens) > stop and not (at == n and self._holds_part(parent, salt, tokens[stop:])):
            blocks = table.blocks[at : n + 1]
            keys = np.concatenate((keys, self._names.partial(table.keys[:, :n], tokens, salt)), axis=1)
            stop = len(tokens)
        self._trie.attach(parent, salt, blocks, keys, tokens[at * self._size : stop])
        self._memory.filled[blocks] = True
        if own.all() and table.anchored == at:
            table.anchored = n
        allocation.committed = n * self._size
        self._version += 1

    def _holds_part(self, parent: int | None, salt: str, tokens: Tokens) -> bool:
        """Whether exactly `tokens`, which do not fill a block, are there below `parent`."""
        below = self._trie.partial(parent, salt, tokens)[:1]
        return any(n == len(tokens) == self._trie.n_tokens[block] for block, n in below)

    # -- losses, tiers -------------------------------------------------------------------------------------------

    def _loaded(self, load: Load) -> Ids:
        """The blocks of the device that a load was for."""
        at = load.first // self._size
        blocks: Ids = load.allocation.where.blocks[at : at + len(load.keys)]
        return blocks

    def _lost(self, transfer: Transfer, n_pages: int) -> None:
        self._version += 1
        if isinstance(transfer, Save):
            self._memory.lose(transfer.keys[n_pages:])
        if not isinstance(transfer, Load):
            return
        allocation, table = transfer.allocation, transfer.allocation.where
        self._memory.take_out(self._loaded(transfer)[n_pages:])
        at = transfer.first // self._size + n_pages
        table.anchored = min(table.anchored, at)
        allocation.committed = min(allocation.committed, at * self._size)
        excess = allocation.reused - at * self._size
        for tier in ("host", "device"):
            back = min(max(excess, 0), allocation.cached.get(tier, 0))
            self._count(allocation, tier, -back)
            excess -= back
        self._events.record("failed", "host", (len(transfer.keys) - n_pages) * self._size, allocation.id)

    def _clear(self, tier: str) -> int:
        self._version += 1
        return self._memory.clear(tier == "host") * self._size

    def _tiers(self) -> list[TierState]:
        used, idle, pages = (n * self._size for n in self._memory.holding())
        tiers = [TierState("device", self.longest, used, idle)]
        if self._n_host:
            tiers.append(TierState("host", self._n_host * self._size, pages, pages))
        return tiers
