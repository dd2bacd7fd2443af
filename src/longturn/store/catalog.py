"""`Catalog`: which extent holds which key, and which extent was used last. Memory only; the caller locks."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from longturn.store.extent import Extent


class Catalog:
    """The extents of one folder, least recently used first. Not safe for threads, and does no I/O."""

    def __init__(self) -> None:
        self._extents: OrderedDict[Extent, None] = OrderedDict()
        self._by_key: dict[bytes, Extent] = {}
        self._unsaved: set[Extent] = set()
        self._now = 0
        self.bytes = 0

    def __len__(self) -> int:
        """How many pages can be answered."""
        return len(self._by_key)

    def find(self, key: bytes) -> Extent | None:
        """The extent that holds this key."""
        return self._by_key.get(key)

    def load(self, extent: Extent) -> None:
        """Add an extent that was found on disk. To be called in the order of `used`."""
        for key in extent.rows:
            if (older := self._by_key.get(key)) is not None:
                del older.rows[key]
            self._by_key[key] = extent
        self._extents[extent] = None
        self._now = max(self._now, extent.used)
        self.bytes += extent.size

    def add(self, extent: Extent) -> None:
        """Add an extent that was just written, as the most recently used."""
        self.load(extent)
        self.touch(extent)

    def touch(self, extent: Extent) -> None:
        """Make this extent the most recently used."""
        self._extents.move_to_end(extent)
        # Strictly ascending, so that the order survives a restart even when the clock stands still or goes back.
        self._now = extent.used = max(self._now + 1, time.time_ns())
        self._unsaved.add(extent)

    def take_unsaved(self) -> list[Extent]:
        """The extents that were touched since the last call."""
        unsaved = list(self._unsaved)
        self._unsaved.clear()
        return unsaved

    def forget(self, extent: Extent, keys: Iterable[bytes]) -> int:
        """Drop keys that this extent holds. Mutates `extent.rows`. Returns how many it held."""
        held = [key for key in dict.fromkeys(keys) if self._by_key.get(key) is extent]
        for key in held:
            del self._by_key[key], extent.rows[key]
        return len(held)

    def remove(self, extent: Extent) -> None:
        """Drop an extent with all its keys; nothing happens when it is not here."""
        if extent in self._extents:
            self.forget(extent, list(extent.rows))
            del self._extents[extent]
            self._unsaved.discard(extent)
            self.bytes -= extent.size

    def shrink(self, to_bytes: int) -> tuple[list[Extent], int]:
        """Drop the least recently used extents until `bytes` is at most this. Returns them, and their pages' count."""
        before = len(self)
        dropped = []
        while self._extents and self.bytes > to_bytes:
            dropped.append(next(iter(self._extents)))
            self.remove(dropped[-1])
        return dropped, before - len(self)
