"""What is remembered of the latest requests, so that later ones can be compared with them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """One thing for each answer, by the client's salt and the answer's id, the oldest out first. Thread-safe."""

    def __init__(self, limit: int = 10_000) -> None:
        self._kept: OrderedDict[tuple[str, str], T] = OrderedDict()
        self._limit = limit
        self._lock = threading.Lock()

    def find(self, salt: str, id: str) -> T | None:
        """What is known of the request that answer `id` of this client answered."""
        with self._lock:
            return self._kept.get((salt, id))

    def keep(self, salt: str, id: str, what: T) -> None:
        """Remember a request."""
        with self._lock:
            self._kept[salt, id] = what
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
