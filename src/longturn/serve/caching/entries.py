"""What a provider would still have in its cache: prefixes by what they contain, each until it expires."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longturn.cache import Tokens


@dataclass(frozen=True)
class Entry:
    """A prefix of so many tokens. life: seconds that it is kept after each use; until: when it expires."""

    tokens: int
    life: float
    until: float


class Entries:
    """At most `limit` entries, the least recently used out first. Safe for several threads. clock: seconds."""

    def __init__(self, limit: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()

    def find(self, key: bytes) -> Entry | None:
        """The entry of that key, if it has not expired; nothing is changed."""
        with self._lock:
            entry = self._entries.get(key)
        return entry if entry is not None and entry.until > self._clock() else None

    def use(self, key: bytes) -> None:
        """Let an entry live as long again as it was written for, as providers do on a hit."""
        with self._lock:
            if entry := self._entries.get(key):
                self._put(key, entry.tokens, entry.life)

    def write(self, key: bytes, tokens: int, life: float) -> None:
        """Keep a prefix of so many tokens for `life` seconds. One that is there for longer stays so."""
        with self._lock:
            old = self._entries.get(key)
            if old is None or old.until < self._clock() + life:
                self._put(key, tokens, life)

    def forget(self, key: bytes) -> None:
        """Drop an entry, if it is there."""
        with self._lock:
            self._entries.pop(key, None)

    def _put(self, key: bytes, tokens: int, life: float) -> None:
        self._entries[key] = Entry(tokens, life, self._clock() + life)
        self._entries.move_to_end(key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)


def prefix_keys(scope: str, tokens: Tokens, lengths: Sequence[int]) -> list[bytes]:
    """A key for each prefix of `tokens` (int32 [n]) of so many tokens, in ascending order; `scope` sets them apart."""
    digest, keys, start = hashlib.blake2b(scope.encode(), digest_size=16), [], 0
    for length in lengths:
        digest.update(tokens[start:length].tobytes())
        keys.append(digest.copy().digest())
        start = length
    return keys
