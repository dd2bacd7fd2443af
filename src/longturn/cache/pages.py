"""Pages of the lower tiers: their keys, and the table of those in host memory.

A page is `page_size` tokens that begin at a multiple of `page_size`. Its key is a hash chain over the model's
fingerprint, the salt and all tokens up to its end, so equal keys mean equal KV, whoever computed it and when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from longturn.cache.eviction import Recency, Usage, Victims
from longturn.cache.radix import Tokens, common_prefix
from longturn.errors import CacheCorruption

KEY_BYTES = 16


def first_key(fingerprint: str, salt: str) -> bytes:
    """The key that the first page of a model and salt is chained to."""
    seed = f"{len(fingerprint)}:{fingerprint}{salt}".encode()
    return hashlib.blake2b(seed, digest_size=KEY_BYTES, person=b"longturn-page").digest()


def chain_keys(parent: bytes, tokens: Tokens, page_size: int, limit: int | None = None) -> list[bytes]:
    """Keys of the whole pages in `tokens` (int32 [n], beginning at a page boundary) below `parent`, at most `limit`."""
    n_pages = len(tokens) // page_size if limit is None else min(len(tokens) // page_size, limit)
    raw, step, keys = tokens[: n_pages * page_size].tobytes(), page_size * 4, []
    for at in range(0, n_pages * step, step):
        parent = hashlib.blake2b(parent + raw[at : at + step], digest_size=KEY_BYTES).digest()
        keys.append(parent)
    return keys


class Page:
    """One page in host memory, of the tokens from `depth` on.

    from_disk: it was fetched and not used since; arriving: its bytes are on the way.
    """

    __slots__ = ("arriving", "children", "depth", "from_disk", "key", "locks", "parent", "tokens", "usage")

    def __init__(self, key: bytes, parent: bytes, depth: int, tokens: Tokens, usage: Usage) -> None:
        self.key = key
        self.depth = depth
        self.parent = parent
        self.tokens = tokens
        self.usage = usage
        self.children: set[bytes] = set()
        self.locks = 0
        self.arriving = False
        self.from_disk = False


class PageTable:
    """Which pages lie in host memory, at most `capacity` of them. Only pages without children are evicted, so that
    every page that is kept can be reached from the first one on."""

    def __init__(self, capacity: int, key: Callable[[Usage], Any], recency: Recency) -> None:
        self.capacity = capacity
        self.pages: dict[bytes, Page] = {}
        self.victims: Victims[Page] = Victims(key, recency)
        self._children: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self.pages)

    def get(self, key: bytes) -> Page | None:
        """The page called `key`, also while it arrives."""
        return self.pages.get(key)

    def best_child(self, parent: bytes, tokens: Tokens) -> tuple[Page | None, int]:
        """The page below `parent` that shares most leading tokens with `tokens`, and how many. Read only."""
        best, shared = None, 0
        for key in self._children.get(parent, ()):
            page = self.pages[key]
            n = 0 if page.arriving else common_prefix(page.tokens, tokens)
            if n > shared:
                best, shared = page, n
        return best, shared

    def below(self, page: Page) -> list[Page]:
        """All pages below `page`, without itself."""
        found, stack = [], [page]
        while stack:
            children = [self.pages[key] for key in stack.pop().children]
            found += children
            stack += children
        return found

    def add(self, page: Page) -> None:
        """Enter a page; room must have been made."""
        self.pages[page.key] = page
        page.children = self._children.setdefault(page.key, page.children)
        siblings = self._children.setdefault(page.parent, set())
        siblings.add(page.key)
        above = self.pages.get(page.parent)
        if above is not None:
            self.victims.withdraw(above)
        self.settle(page)

    def remove(self, page: Page) -> None:
        """Forget a page."""
        self.victims.withdraw(page)
        del self.pages[page.key]
        if not page.children:
            self._children.pop(page.key, None)
        siblings = self._children[page.parent]
        siblings.discard(page.key)
        above = self.pages.get(page.parent)
        if above is not None:
            self.settle(above)
        elif not siblings:
            del self._children[page.parent]

    def lock(self, pages: list[Page]) -> None:
        """Keep `pages` from being evicted."""
        for page in pages:
            page.locks += 1
            self.victims.withdraw(page)

    def unlock(self, pages: list[Page]) -> None:
        """Undo `lock`."""
        for page in pages:
            page.locks -= 1
            self.settle(page)

    def settle(self, page: Page) -> None:
        """Queue the page for eviction if nothing holds it. Call after any change of its state or usage."""
        if page.locks or page.arriving or page.children:
            self.victims.withdraw(page)
        elif page.key in self.pages:
            self.victims.offer(page)

    def check(self) -> None:
        """Raises CacheCorruption when the table contradicts itself."""
        if len(self.pages) > self.capacity:
            raise CacheCorruption(f"{len(self.pages)} pages in a host tier of {self.capacity}")
        for page in self.pages.values():
            if page.key not in self._children[page.parent]:
                raise CacheCorruption("a host page is unknown to its parent")
            if any(key not in self.pages for key in page.children):
                raise CacheCorruption("a host page has a child that is gone")
            held = bool(page.locks or page.arriving or page.children)
            if held == (page in self.victims):
                raise CacheCorruption("a host page is queued for eviction although held, or the reverse")
        for parent, keys in self._children.items():
            if not keys and parent not in self.pages:
                raise CacheCorruption("a list of children outlived its pages")
