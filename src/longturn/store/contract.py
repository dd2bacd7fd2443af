"""What every page store does: `PageStore`, and the counts that it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from longturn.errors import StoreError

KEY_BYTES = 16
"""Length of a content key."""

Page = npt.NDArray[np.uint8]
"""One page of KV: uint8 [page_bytes]."""

Pages = npt.NDArray[np.uint8]
"""A batch of pages: uint8 [n, page_bytes]."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds now, and what it did since it was opened (all counts are pages).

    pages, bytes, capacity_bytes: held now; `bytes` is what counts against the capacity.
    puts: newly accepted. hits, misses: answered by `get`, and not.
    corrupt: found lost, torn or damaged, and forgotten.
    dropped: refused or lost before they were stored. evicted: removed to make room.
    """

    pages: int
    bytes: int
    capacity_bytes: int
    puts: int = 0
    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    dropped: int = 0
    evicted: int = 0


class PageStore(Protocol):
    """Pages of `page_bytes` bytes by content key (`KEY_BYTES` bytes).

    Equal keys mean equal content, so a page that is already present is never written again. A page that cannot be had,
    for whatever reason, is a miss and never an exception. StoreError is raised for keys and pages of the wrong shape.
    """

    @property
    def page_bytes(self) -> int: ...

    def put(self, keys: Sequence[bytes], pages: Pages) -> int:
        """Store pages, uint8 [len(keys), page_bytes]. Returns how many leading ones were accepted.

        A page that is already present counts as accepted, and as used now.
        """
        ...

    def get(self, keys: Sequence[bytes]) -> list[Page | None]:
        """One read-only page for each key, uint8 [page_bytes], or None for a miss."""
        ...

    def contains(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are present; stops at the first absent one. Changes nothing."""
        ...

    def delete(self, keys: Sequence[bytes]) -> int:
        """Forget pages. Returns how many were present."""
        ...

    def clear(self) -> int:
        """Forget all pages. Returns how many there were."""
        ...

    def stats(self) -> StoreStats:
        """What the store holds and did."""
        ...

    def close(self) -> None:
        """Let go of memory, threads and files. A closed store accepts nothing and answers misses."""
        ...


def check_sizes(capacity_bytes: int, page_bytes: int) -> None:
    """Raises StoreError unless pages have a size and the capacity is not negative."""
    if page_bytes < 1 or capacity_bytes < 0:
        raise StoreError(
            f"a store of {capacity_bytes} bytes in pages of {page_bytes} cannot work: "
            "give pages of 1 byte or more and a capacity of 0 or more"
        )


def check_batch(keys: Sequence[bytes], pages: Pages, page_bytes: int) -> None:
    """Raises StoreError unless there is one page of the right size, and a key of the right length, for each."""
    if pages.dtype != np.uint8 or pages.shape != (len(keys), page_bytes):
        raise StoreError(
            f"{len(keys)} keys need pages of uint8 [{len(keys)}, {page_bytes}], not {pages.dtype} {list(pages.shape)}: "
            "view the pages as bytes and give one row for each key"
        )
    if any(len(key) != KEY_BYTES for key in keys):
        raise StoreError(f"a content key has {KEY_BYTES} bytes: shorten or hash the keys to that length")
