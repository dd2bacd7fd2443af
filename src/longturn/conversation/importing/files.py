"""Files to import, plain or gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from longturn.errors import ImportFailed

_GZIP = b"\x1f\x8b"


def content(path: Path) -> bytes:
    """All bytes. Raises ImportFailed."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        raise ImportFailed(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def numbered(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, and their numbers from 1."""
    return ((number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip())


def malformed(path: Path, where: str, error: Exception) -> ImportFailed:
    """A piece of a file that cannot be read. where: such as "line 3"."""
    return ImportFailed(f"{path}, {where}: {error}. Mend the file, or leave such lines out with --skip-bad")
