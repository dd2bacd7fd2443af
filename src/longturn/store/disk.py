"""`DiskStore`: pages on a local disk, written behind the caller's back, kept over restarts."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from longturn.store.catalog import Catalog
from longturn.store.contract import Page, Pages, StoreStats, check_batch, check_sizes
from longturn.store.extent import Extent, extent_bytes, write_extent, write_header
from longturn.store.folder import Folder, remove_files, save_recency

_log = logging.getLogger(__name__)

_EXTENT_PAGES = 64
_LEAST_EXTENTS = 8
_RECENCY_SECONDS = 10.0
_CLOSE_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class _Batch:
    """Pages on their way to one extent."""

    keys: list[bytes]
    pages: Pages


class DiskStore:
    """Pages in files of up to 64, the least recently used file evicted first. Safe for threads.

    directory: a folder for this store alone; what an earlier process stored there is found again.
    capacity_bytes: bound on the bytes of all files.
    max_queue_bytes: bound on the bytes of the pages that wait to be written.

    `put` only queues: a thread writes. A disk that is slow, full or broken costs pages (`dropped`), never time or an
    exception; a page that is lost, torn or damaged is a miss (`corrupt`). Raises StoreError when the folder cannot be
    used or is open already, here or in another process, and for sizes that cannot work.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity_bytes: int,
        page_bytes: int,
        max_queue_bytes: int = 256 * 2**20,
    ) -> None:
        check_sizes(capacity_bytes, page_bytes)
        self._page_bytes = page_bytes
        self._capacity_bytes = capacity_bytes
        self._max_queue_bytes = max_queue_bytes
        # Eviction removes whole extents, so a small store gets small ones; one that cannot hold a page gets none.
        share = min(_EXTENT_PAGES, capacity_bytes // (_LEAST_EXTENTS * page_bytes))
        self._extent_pages = max(1, share) if extent_bytes(1, page_bytes) <= capacity_bytes else 0

        # Guards everything below it, and is never held during I/O. Notified when the queue or `_closing` changes.
        self._changed = threading.Condition()
        self._catalog = Catalog()
        self._pending: dict[bytes, tuple[_Batch, int]] = {}
        self._queue: deque[_Batch] = deque()  # the first batch stays until it is written
        self._queued_bytes = 0
        self._counts: Counter[str] = Counter()
        self._closing = False
        # Held while the header of a file is brought up to date, so that an older header never overwrites a newer one.
        self._settling = threading.Lock()

        self._folder = Folder(directory)
        for extent in self._folder.scan(page_bytes):
            self._catalog.load(extent)
        self._evict(to_bytes=capacity_bytes)
        self._writer = threading.Thread(target=self._write_behind, name="longturn-disk-store", daemon=True)
        self._writer.start()

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def put(self, keys: Sequence[bytes], pages: Pages) -> int:
        """Queue pages, uint8 [len(keys), page_bytes], and return at once; they can be got from now on.

        Stops at the first new page that does not fit in the queue. An array that owns its memory and is new throughout
        is kept without a copy: it becomes read-only, and must not be changed by other means. Anything else is copied.
        """
        check_batch(keys, pages, self._page_bytes)
        with self._changed:
            room = (self._max_queue_bytes - self._queued_bytes) // self._page_bytes
            if self._closing or not self._extent_pages:
                room = 0
            fresh: dict[bytes, int] = {}
            touched: dict[Extent, None] = {}
            accepted = len(keys)
            for row, key in enumerate(keys):
                if (extent := self._catalog.find(key)) is not None:
                    touched[extent] = None
                elif key not in self._pending and key not in fresh:
                    if len(fresh) == room:
                        accepted = row
                        break
                    fresh[key] = row
            for extent in touched:
                self._catalog.touch(extent)
            self._counts.update(puts=len(fresh), dropped=len(keys) - accepted)
            if fresh:
                self._enqueue(list(fresh), _keep(pages, list(fresh.values())))
        return accepted

    def get(self, keys: Sequence[bytes]) -> list[Page | None]:
        """One read-only page for each key, uint8 [page_bytes], or None. Neighbours may share one block of memory."""
        found: dict[bytes, Page] = {}
        wanted: dict[Extent, dict[int, bytes]] = {}
        with self._changed:
            for key in keys:
                if (waiting := self._pending.get(key)) is not None:
                    batch, row = waiting
                    found[key] = batch.pages[row]
                elif (extent := self._catalog.find(key)) is not None:
                    wanted.setdefault(extent, {})[extent.rows[key]] = key
            for extent in wanted:
                self._catalog.touch(extent)
        for extent, rows in wanted.items():
            found.update(self._read(extent, rows))
        answer = [found.get(key) for key in keys]
        misses = sum(page is None for page in answer)
        with self._changed:
            self._counts.update(hits=len(keys) - misses, misses=misses)
        return answer

    def contains(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are present, written or still queued."""
        with self._changed:
            for count, key in enumerate(keys):
                if key not in self._pending and self._catalog.find(key) is None:
                    return count
        return len(keys)

    def delete(self, keys: Sequence[bytes]) -> int:
        """Forget pages for good, over restarts too. Returns how many were present.

        Touches the disk. The space of a page is free again when all pages of its file are deleted, or it is evicted.
        """
        stored: dict[Extent, list[bytes]] = {}
        deleted = 0
        with self._changed:
            for key in keys:
                if self._pending.pop(key, None) is not None:
                    deleted += 1
                elif (extent := self._catalog.find(key)) is not None:
                    stored.setdefault(extent, []).append(key)
        return deleted + sum(self._forget(extent, held) for extent, held in stored.items())

    def clear(self) -> int:
        """Forget all pages and remove all files, also those with pages of another size. Returns how many were ours."""
        with self._changed:
            waiting = len(self._pending)
            self._pending.clear()
            extents, stored = self._catalog.shrink(0)
        remove_files(extent.path for extent in extents)
        return waiting + stored

    def stats(self) -> StoreStats:
        """What the store holds and did. `pages` includes queued ones, `bytes` is the size of the files."""
        with self._changed:
            pages = len(self._pending) + len(self._catalog)
            return StoreStats(pages, self._catalog.bytes, self._capacity_bytes, **self._counts)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds, until nothing is queued. Returns whether that came true."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout)

    def close(self) -> None:
        """Write what is queued, for half a minute at most, then stop and unlock the folder. May be called twice."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_SECONDS
        self.flush(_CLOSE_SECONDS)
        with self._changed:
            self._counts["dropped"] += len(self._pending)
            self._pending.clear()
        self._writer.join(max(1.0, deadline - time.monotonic()))
        with self._changed:
            unsaved, self._catalog = self._catalog.take_unsaved(), Catalog()
        save_recency(unsaved)
        # A writer that hangs in the disk still owns the folder; it lets go when the process ends.
        if not self._writer.is_alive():
            self._folder.unlock()

    def _enqueue(self, keys: list[bytes], pages: Pages) -> None:
        for start in range(0, len(keys), self._extent_pages):
            part = slice(start, start + self._extent_pages)
            batch = _Batch(keys[part], pages[part])
            self._pending.update((key, (batch, row)) for row, key in enumerate(batch.keys))
            self._queue.append(batch)
        self._queued_bytes += pages.nbytes
        self._changed.notify_all()

    def _read(self, extent: Extent, rows: dict[int, bytes]) -> dict[bytes, Page]:
        """The sound pages among these rows of an extent, by key. The others are forgotten."""
        lost: Collection[bytes]
        try:
            pages = extent.read(rows)
            lost = [key for row, key in rows.items() if row not in pages]
        except OSError:
            pages = {}
            with self._changed:
                lost = list(extent.rows)
        if lost:
            # Zero when it was evicted or deleted meanwhile: then nothing is corrupt.
            forgotten = self._forget(extent, lost)
            with self._changed:
                self._counts["corrupt"] += forgotten
        return {rows[row]: page for row, page in pages.items()}

    def _forget(self, extent: Extent, keys: Collection[bytes]) -> int:
        with self._changed:
            forgotten = self._catalog.forget(extent, keys)
        if forgotten:
            self._settle(extent)
        return forgotten

    def _settle(self, extent: Extent) -> None:
        """Make the file agree with `extent.rows`: without rows it goes, else its header is rewritten."""
        with self._settling:
            with self._changed:
                header = extent.header() if extent.rows else None
                if header is None:
                    self._catalog.remove(extent)
            if header is None:
                remove_files([extent.path])
                return
            try:
                write_header(extent.path, header)
            except FileNotFoundError:
                pass  # evicted meanwhile
            except OSError as error:
                _log.warning("cannot mark deleted pages in %s: %s", extent.path, error)

    def _write_behind(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, _RECENCY_SECONDS)
                if self._closing and not self._queue:
                    return
                batch = self._queue[0] if self._queue else None
            if batch is not None:
                self._write(batch)
                with self._changed:
                    self._queue.popleft()
                    self._queued_bytes -= batch.pages.nbytes
                    self._changed.notify_all()
            with self._changed:
                unsaved = self._catalog.take_unsaved()
            save_recency(unsaved)

    def _write(self, batch: _Batch) -> None:
        with self._changed:
            rows = self._waiting(batch)
        if not rows:
            return
        keys = [batch.keys[row] for row in rows]
        pages = batch.pages if len(rows) == len(batch.keys) else batch.pages[rows]
        self._evict(to_bytes=self._capacity_bytes - extent_bytes(len(rows), self._page_bytes))
        extent = None
        try:
            extent = write_extent(self._folder.new_path(), keys, pages)
        except OSError as error:
            _log.warning("cannot store %d pages in %s: %s", len(rows), self._folder.path, error)
        with self._changed:
            still = [batch.keys[row] for row in self._waiting(batch)]
            for key in still:
                del self._pending[key]
            if extent is None:
                self._counts["dropped"] += len(still)
                return
            extent.rows = {key: extent.rows[key] for key in still}
            self._catalog.add(extent)
        if len(still) < len(rows):
            self._settle(extent)

    def _waiting(self, batch: _Batch) -> list[int]:
        """The rows of a batch that were not deleted, or put anew in a later batch, since it was queued."""
        slots = ((row, self._pending.get(key)) for row, key in enumerate(batch.keys))
        return [row for row, slot in slots if slot is not None and slot[0] is batch]

    def _evict(self, to_bytes: int) -> None:
        with self._changed:
            extents, pages = self._catalog.shrink(to_bytes)
            self._counts["evicted"] += pages
        remove_files(extent.path for extent in extents)


def _keep(pages: Pages, rows: list[int]) -> Pages:
    """These rows as read-only memory that nobody else writes: the array itself when it can be, else a copy."""
    # A view, even a read-only one, may show memory that is reused: a frame of the host store, for example.
    whole = len(rows) == len(pages) and pages.flags.c_contiguous and pages.flags.owndata
    kept = pages if whole else pages[rows]
    kept.flags.writeable = False
    return kept
