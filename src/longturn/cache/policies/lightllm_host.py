"""LightLLM's host tier: pages of prompts in the order of their last use, with no tree above them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from longturn.errors import CacheCorruption


class HostPages:
    """Which pages the host has, by key, the oldest first; at most `capacity`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._pages: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def match(self, keys: Sequence[bytes]) -> int:
        """How many leading ones of `keys` are here. Read only."""
        pages = self._pages
        return next((n for n, key in enumerate(keys) if key not in pages), len(keys))

    def touch(self, keys: Iterable[bytes]) -> None:
        """Make pages that are here the newest, the last one most."""
        for key in keys:
            self._pages.move_to_end(key)

    def keep(self, keys: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
        """Make `keys` the newest in their order. Returns the places of those that are new, and what made way.

        The oldest page makes way, never one of `keys` that came before: when there is no other, the rest is left out.
        """
        pages, new, gone = self._pages, [], []
        for at, key in enumerate(keys):
            if key in pages:
                pages.move_to_end(key)
                continue
            if len(pages) == self.capacity:
                if at >= self.capacity:
                    break
                gone.append(pages.popitem(last=False)[0])
            pages[key] = None
            new.append(at)
        return new, gone

    def lose(self, keys: Iterable[bytes]) -> list[bytes]:
        """Forget pages; returns those that were here."""
        lost = [key for key in keys if key in self._pages]
        for key in lost:
            del self._pages[key]
        return lost

    def clear(self) -> list[bytes]:
        """Forget all pages; returns them."""
        return self.lose(list(self._pages))

    def check(self) -> None:
        """Raises CacheCorruption when there are too many."""
        if len(self._pages) > self.capacity:
            raise CacheCorruption(f"the host has {len(self._pages)} pages, of at most {self.capacity}")
