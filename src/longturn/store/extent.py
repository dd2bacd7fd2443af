"""The file format of the disk store: an extent is a batch of pages behind one header.

    magic, version, page count n, page_bytes     `_FIXED`
    n keys                                       KEY_BYTES each, all zero for a deleted page
    n page checksums                             xxh3_64, 8 bytes each
    header checksum                              xxh3_64 of everything above
    n pages                                      page_bytes each

Numbers are little-endian. A file is written under a temporary name and renamed, so a name that ends in EXTENSION is
whole unless the machine itself went down. Nothing is synced: the page cache survives a killed process, and after a
power loss the checksums turn whatever is torn into misses.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from longturn.store.contract import KEY_BYTES, Page, Pages

EXTENSION = ".ltkv"
TEMPORARY = EXTENSION + ".tmp"

_FIXED = struct.Struct("<8sIIQ")
_CHECKSUM = struct.Struct("<Q")
_MAGIC = b"longturn"
_VERSION = 1
_DELETED = bytes(KEY_BYTES)


@dataclass(eq=False, slots=True)
class Extent:
    """One file of pages.

    sums: uint64 [n], the checksum of each page. rows: the row of each page that is still alive.
    size: bytes of the file. used: when it was last used, unix nanoseconds.
    """

    path: Path
    page_bytes: int
    sums: npt.NDArray[np.uint64]
    rows: dict[bytes, int]
    size: int
    used: int = field(default=0)

    def header(self) -> bytes:
        """The header as it should be now: only the pages in `rows` are alive."""
        keys = [_DELETED] * len(self.sums)
        for key, row in self.rows.items():
            keys[row] = key
        body = _FIXED.pack(_MAGIC, _VERSION, len(keys), self.page_bytes) + b"".join(keys) + self.sums.tobytes()
        return body + _CHECKSUM.pack(xxh3_64_intdigest(body))

    def read(self, rows: Iterable[int]) -> dict[int, Page]:
        """The pages at these rows, read-only uint8 [page_bytes]; torn and damaged ones are left out.

        Neighbouring pages come with one sequential read and share their memory. Raises OSError when the file cannot be
        opened.
        """
        pages: dict[int, Page] = {}
        with FileIO(self.path) as file:
            for first, count in _runs(sorted(rows)):
                block = np.empty((count, self.page_bytes), np.uint8)
                whole = _read_at(file, header_bytes(len(self.sums)) + first * self.page_bytes, block) // self.page_bytes
                block.flags.writeable = False
                for row, page in enumerate(block[:whole], first):
                    if xxh3_64_intdigest(page) == self.sums[row]:
                        pages[row] = page
        return pages


def header_bytes(pages: int) -> int:
    """Bytes before the first page."""
    return _FIXED.size + pages * (KEY_BYTES + _CHECKSUM.size) + _CHECKSUM.size


def extent_bytes(pages: int, page_bytes: int) -> int:
    """Bytes of a whole file."""
    return header_bytes(pages) + pages * page_bytes


def write_extent(path: Path, keys: Sequence[bytes], pages: Pages) -> Extent:
    """Write contiguous pages, uint8 [len(keys), page_bytes], as one file that appears whole or not at all.

    Raises OSError, and leaves nothing behind, when the disk refuses.
    """
    count, page_bytes = pages.shape
    sums = np.array([xxh3_64_intdigest(page) for page in pages], np.dtype("<u8"))
    rows = {key: row for row, key in enumerate(keys)}
    extent = Extent(path, page_bytes, sums, rows, extent_bytes(count, page_bytes))
    temporary = path.with_suffix(TEMPORARY)
    try:
        with open(temporary, "xb", opener=_private) as file:
            file.write(extent.header())
            file.write(pages.data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return extent


def open_extent(path: Path) -> Extent | None:
    """Read the header of a file; None when it is not a sound extent or cannot be read.

    Pages beyond the end of a truncated file are left out.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            fixed = file.read(_FIXED.size)
            magic, version, count, page_bytes = _FIXED.unpack(fixed)
            if magic != _MAGIC or version != _VERSION or page_bytes < 1 or header_bytes(count) > status.st_size:
                return None
            body = fixed + file.read(header_bytes(count) - _FIXED.size)
    except (OSError, struct.error):
        return None
    if xxh3_64_intdigest(body[: -_CHECKSUM.size]) != _CHECKSUM.unpack_from(body, len(body) - _CHECKSUM.size)[0]:
        return None
    sums_at = _FIXED.size + count * KEY_BYTES
    keys = (body[at : at + KEY_BYTES] for at in range(_FIXED.size, sums_at, KEY_BYTES))
    whole = (status.st_size - header_bytes(count)) // page_bytes
    rows = {key: row for row, key in enumerate(keys) if key != _DELETED and row < whole}
    sums = np.frombuffer(body, np.dtype("<u8"), count, sums_at)
    return Extent(path, page_bytes, sums, rows, status.st_size, status.st_mtime_ns)


def write_header(path: Path, header: bytes) -> None:
    """Replace the header of a file in one write. Raises OSError, FileNotFoundError when the file is gone."""
    with open(path, "r+b", buffering=0) as file:
        file.write(header)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending rows as (first, count) of each run of neighbours."""
    start = 0
    for stop in range(1, len(rows) + 1):
        if stop == len(rows) or rows[stop] != rows[stop - 1] + 1:
            yield rows[start], stop - start
            start = stop


def _read_at(file: FileIO, offset: int, block: Pages) -> int:
    """Fill the block from this offset on; returns how many bytes could be read."""
    target, got = block.data.cast("B"), 0
    try:
        file.seek(offset)
        while got < len(target) and (n := file.readinto(target[got:])):
            got += n
    except OSError:
        pass  # a bad spot on the disk loses the pages on it, not the whole file
    return got
