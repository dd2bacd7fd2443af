"""The tiers below the device: pages in host memory and on disk, found by their keys.

This half of a policy decides which pages lie where and lists the transfers that make it so; it moves no bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from longturn.cache.events import EventLog
from longturn.cache.eviction import Recency, Usage
from longturn.cache.pages import Page, PageTable, chain_keys
from longturn.cache.radix import Tokens
from longturn.cache.slots import Runs
from longturn.cache.transfers import Drop, Fetch, Save, Transfer
from longturn.store.contract import PageStore

_LOOKUP_BLOCK = 64


class PageHit(NamedTuple):
    """A page that continues a hit: where it counts (`tier`), how many tokens it brings, whether it still arrives."""

    key: bytes
    tier: str
    gained: int
    arriving: bool


class PageRef(NamedTuple):
    """A page of a sequence: its key, the key before it, and its number."""

    key: bytes
    parent: bytes
    number: int


class LowerTiers:
    """`host_pages` pages in host memory, and whatever `disk` holds (it is only asked what it contains)."""

    def __init__(
        self,
        host_pages: int,
        disk: PageStore | None,
        page_size: int,
        order: Callable[[Usage], Any],
        recency: Recency,
        events: EventLog,
        *,
        disk_after_host: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exist = host_pages > 0 or disk is not None
        self.table = PageTable(host_pages, order, recency)
        self.transfers: list[Transfer] = []
        self.disk = disk
        self._page_size = page_size
        self._recency = recency
        self._events = events
        self._clock = clock
        # Under write-back the disk gets a page only when host memory evicts it.
        self._disk_after_host = disk_after_host and host_pages > 0

    def match(self, tokens: Tokens, device: int, parent: bytes) -> list[PageHit]:
        """The pages that continue a match of `device` tokens whose last whole page is `parent`. Mutates nothing.

        All but the last of int32 [n] `tokens` may be matched; the last page may be used in part.
        """
        if not self.exist:
            return []
        size, limit = self._page_size, len(tokens) - 1
        hits: list[PageHit] = []
        at = device // size * size
        while at < limit:
            keys = chain_keys(parent, tokens[at:], size, _LOOKUP_BLOCK)
            found = list(self._residence(keys))
            for key, tier, arriving in found:
                gained = min(at + size, limit) - max(at, device)
                if gained > 0:
                    hits.append(PageHit(key, tier, gained, arriving))
                at, parent = at + size, key
            if len(found) < _LOOKUP_BLOCK:
                break
        page, shared = self.table.best_child(parent, tokens[at:limit])
        gained = at + shared - max(at, device)
        if page is not None and gained > 0:
            hits.append(PageHit(page.key, "disk" if page.from_disk else "host", gained, False))
        return hits

    def _residence(self, keys: list[bytes]) -> Iterator[tuple[bytes, str, bool]]:
        """For the leading keys that lie in some tier: (key, the tier it counts for, whether it still arrives)."""
        on_disk = 0
        for i, key in enumerate(keys):
            page = self.table.get(key)
            if page is not None:
                yield key, "disk" if page.from_disk else "host", page.arriving
                continue
            if self.disk is not None and on_disk <= i:
                on_disk = i + self.disk.contains(keys[i:])
            if on_disk <= i:
                return
            yield key, "disk", False

    def fetch(self, pages: list[PageRef], tokens: Tokens) -> Fetch | None:
        """Reserve host memory for those of `pages` that lie only on disk, at most half of all host memory."""
        if self.disk is None or not self.table.capacity:
            return None
        here = [page for ref in pages if (page := self.table.get(ref.key)) is not None]
        wanted = [ref for ref in pages if self.table.get(ref.key) is None]
        self.table.lock(here)
        room = self.make_room(min(len(wanted), max(self.table.capacity // 2, 1)))
        self.table.unlock(here)
        wanted = wanted[: min(room, self.disk.contains([ref.key for ref in wanted]))]
        for ref in wanted:
            page = self._page(ref, tokens, 0)
            page.arriving = page.from_disk = True
            self.table.add(page)
        return Fetch([ref.key for ref in wanted]) if wanted else None

    def fetched(self, fetch: Fetch, n_pages: int) -> None:
        """A fetch has ended; its pages may be used now, those that came."""
        lost = self.table.get(fetch.keys[n_pages]) if n_pages < len(fetch.keys) else None
        if lost is not None:
            missing = (len(fetch.keys) - n_pages) * self._page_size
            self._events.record("failed", "disk", missing, depth=lost.depth)
        for key in fetch.keys:
            page = self.table.get(key)
            if page is not None:
                page.arriving = False
                self.table.settle(page)
        self._events.record("fetched", "disk", n_pages * self._page_size)

    def held(self, tokens: Tokens, device: int, parent: bytes, start: int, *, below: bool) -> list[Page]:
        """The pages of int32 [n] `tokens` that are in host memory, behind a match of `device` tokens whose last whole
        page is `parent`, as far as they reach beyond `start`. With `below` also the pages that follow them."""
        size = self._page_size
        first = device // size
        keys = chain_keys(parent, tokens[first * size :], size) if self.table.pages else []
        ends = range((first + 1) * size, (first + len(keys) + 1) * size, size)
        found = [self.table.get(key) for key, end in zip(keys, ends, strict=True) if end > start]
        held = [page for page in found if page is not None]
        if below and found and (last := found[-1]) is not None:
            held += self.table.below(last)
        return held

    def lock(self, keys: list[bytes]) -> list[Page]:
        """Hold those of `keys` that are in host memory; give the result back to `unlock`."""
        pages = [page for key in keys if (page := self.table.get(key)) is not None]
        self.table.lock(pages)
        return pages

    def unlock(self, pages: list[Page]) -> None:
        """Undo `lock`."""
        self.table.unlock(pages)

    def touch(self, keys: list[bytes], by: int) -> list[bytes]:
        """Note a use of `keys` by an allocation; returns those that are not in host memory."""
        absent = []
        for key in keys:
            page = self.table.get(key)
            if page is None:
                absent.append(key)
            else:
                page.from_disk = False
                self._recency.touch(page.usage, by=by)
                self.table.settle(page)
        return absent

    def save(self, pages: list[PageRef], tokens: Tokens, runs: Runs, by: int | None, of: int) -> None:
        """List the saves of those of `pages` that a tier still lacks; `tokens` and `runs` are those of page 0 on.

        by: the allocation for which it is done; of: the one that used them last.
        """
        size = self._page_size
        room = self.make_room(sum(self.table.get(ref.key) is None for ref in pages), by)
        batches: dict[tuple[str, ...], tuple[list[bytes], Runs]] = {}
        for ref in pages:
            tiers: tuple[str, ...] = ()
            if room and self.table.get(ref.key) is None:
                self.table.add(self._page(ref, tokens, of))
                tiers, room = ("host",), room - 1
            if self.disk is not None and not self._disk_after_host and not self.disk.contains([ref.key]):
                tiers = (*tiers, "disk")
            if tiers:
                keys, slots = batches.setdefault(tiers, ([], Runs()))
                keys.append(ref.key)
                slots.extend(runs.slice(ref.number * size, (ref.number + 1) * size))
        for tiers, (keys, slots) in batches.items():
            self.transfers.append(Save(keys, slots, tiers))
            for tier in tiers:
                self._events.record("stored", tier, len(keys) * size, by)

    def make_room(self, n: int, by: int | None = None) -> int:
        """Evict until `n` pages fit into host memory; returns how many of them do."""
        free = self.table.capacity - len(self.table)
        dropped: dict[bool, list[Page]] = {False: [], True: []}
        now = self._clock()
        while free < n and (page := self.table.victims.pop(now)) is not None:
            self.table.remove(page)
            dropped[self._disk_after_host and self.kept_on_disk(page.key) is None].append(page)
            free += 1
        for to_disk, pages in dropped.items():
            if pages:
                to_disk = to_disk and self.disk is not None
                self.transfers.append(Drop([page.key for page in pages], to_disk))
                self._tell(pages, to_disk, by)
        return min(free, n)

    def _tell(self, pages: list[Page], to_disk: bool, by: int | None) -> None:
        """An event for each stretch of evicted pages that one allocation had used last; the deepest page goes first."""
        size = self._page_size
        for _, stretch in groupby(enumerate(pages), lambda at: (at[1].usage.by, at[1].depth + at[0] * size)):
            gone = [page for _, page in stretch]
            first = gone[-1]
            kept_in = "disk" if to_disk else self.kept_on_disk(first.key)
            self._events.record("evicted", "host", len(gone) * size, by, first.depth, kept_in, first.usage)

    def kept_in(self, key: bytes) -> str | None:
        """The highest of these tiers that holds the page."""
        return "host" if self.table.get(key) is not None else self.kept_on_disk(key)

    def kept_on_disk(self, key: bytes) -> str | None:
        """ "disk" if the page lies there."""
        return "disk" if self.disk is not None and self.disk.contains([key]) else None

    def lose(self, keys: Sequence[bytes]) -> None:
        """Forget pages whose bytes did not arrive whole."""
        for key in keys:
            page = self.table.get(key)
            if page is not None:
                self.table.remove(page)
        self.transfers.append(Drop(keys))

    def _page(self, ref: PageRef, tokens: Tokens, of: int) -> Page:
        start = ref.number * self._page_size
        held = tokens[start : start + self._page_size].copy()
        return Page(ref.key, ref.parent, start, held, self._recency.fresh(start, self._page_size, of))
