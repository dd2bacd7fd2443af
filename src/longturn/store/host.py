"""`HostStore`: pages in host memory."""

from __future__ import annotations

import heapq
import mmap
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np

from longturn.errors import StoreError
from longturn.store.ahead import Ahead
from longturn.store.contract import Page, Pages, StoreStats, check_batch, check_sizes


class HostStore:
    """Pages in one preallocated arena of `capacity_bytes // page_bytes` frames. Safe for threads.

    It never evicts by itself: when it is full, `put` comes back short, and the cache policy decides what to delete. The
    memory is virtual until frames are about to be written (see `Ahead`). Raises StoreError for sizes that cannot work.
    """

    def __init__(self, capacity_bytes: int, page_bytes: int) -> None:
        check_sizes(capacity_bytes, page_bytes)
        self._page_bytes = page_bytes
        self._capacity_bytes = capacity_bytes
        try:
            self._arena = _arena(capacity_bytes // page_bytes, page_bytes)
        except (MemoryError, OSError) as error:
            raise StoreError(f"no host memory for a store of {capacity_bytes} bytes: give it less") from error
        self._ahead = Ahead([self._arena.ctypes.data], len(self._arena), page_bytes)
        # What comes back from disk after a restart comes all at once.
        self._ahead.reached(0)
        self._readable = self._arena.view()
        self._readable.flags.writeable = False
        self._frames: dict[bytes, int] = {}
        # Frames below `_untouched` that came back, as a heap: the lowest goes out first, so that runs stay contiguous.
        self._returned: list[int] = []
        self._untouched = 0
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def put(self, keys: Sequence[bytes], pages: Pages) -> int:
        """Copy pages, uint8 [len(keys), page_bytes], in; stops at the first new page for which no frame is free."""
        check_batch(keys, pages, self._page_bytes)
        with self._lock:
            for row, key in enumerate(keys):
                if key in self._frames:
                    continue
                frame = self._free_frame()
                if frame is None:
                    self._counts["dropped"] += len(keys) - row
                    return row
                self._arena[frame] = pages[row]
                self._frames[key] = frame
                self._counts["puts"] += 1
        return len(keys)

    def get(self, keys: Sequence[bytes]) -> list[Page | None]:
        """Read-only views of the frames, uint8 [page_bytes], or None for a miss. Nothing is copied.

        A view is valid until its key is deleted: after that the frame may hold another page.
        """
        with self._lock:
            found = [self._frames.get(key) for key in keys]
            misses = found.count(None)
            self._counts.update(hits=len(found) - misses, misses=misses)
        return [None if frame is None else self._readable[frame] for frame in found]

    def contains(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are present."""
        return next((n for n, key in enumerate(keys) if key not in self._frames), len(keys))

    def delete(self, keys: Sequence[bytes]) -> int:
        """Free the frames of these keys. Returns how many were present."""
        with self._lock:
            freed = [self._frames.pop(key) for key in dict.fromkeys(keys) if key in self._frames]
            for frame in freed:
                heapq.heappush(self._returned, frame)
        return len(freed)

    def clear(self) -> int:
        """Free all frames. Returns how many were held."""
        with self._lock:
            count = len(self._frames)
            self._frames.clear()
            self._returned.clear()
            self._untouched = 0
        return count

    def stats(self) -> StoreStats:
        """What the store holds and did."""
        pages = len(self._frames)
        return StoreStats(pages, pages * self._page_bytes, self._capacity_bytes, **self._counts)

    def close(self) -> None:
        """Let go of the arena; views that are still held stay readable."""
        self.clear()
        self._arena = self._readable = np.empty((0, self._page_bytes), np.uint8)

    def _free_frame(self) -> int | None:
        if self._returned:
            return heapq.heappop(self._returned)
        if self._untouched == len(self._arena):
            return None
        self._untouched += 1
        self._ahead.reached(self._untouched)
        return self._untouched - 1


def _arena(frames: int, page_bytes: int) -> Pages:
    # Not numpy's own memory, for which it asks huge pages: their first touch clears 2 MiB at once, and where a virtual
    # machine gets its memory only then, filling fresh memory took up to eight times as long as with plain pages.
    memory = mmap.mmap(-1, max(frames * page_bytes, 1))
    return np.frombuffer(memory, np.uint8, frames * page_bytes).reshape(frames, page_bytes)
