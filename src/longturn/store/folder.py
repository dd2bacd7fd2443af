"""`Folder`: a directory of extents that belongs to one process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from longturn.errors import StoreError
from longturn.store.extent import EXTENSION, TEMPORARY, Extent, open_extent


class Folder:
    """A directory, locked for this process until `unlock`. It is created, for the owner only, when it is missing.

    Raises StoreError when it cannot be used or another process owns it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory).absolute()
        try:
            # An existing folder keeps its permissions: it may not be ours alone. The files are private in any case.
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot use {self.path} as a page store: {error.strerror}. Choose a folder that you can write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StoreError(
                f"{self.path} is already open as a page store: stop the other process, or choose another folder"
            ) from error
        except OSError as error:
            os.close(self._lock)
            raise StoreError(f"cannot lock {self.path}: {error.strerror}. Choose a folder on a local disk") from error

    def scan(self, page_bytes: int) -> list[Extent]:
        """The extents found here, least recently used first. Reads headers only.

        Extents with pages of another size come without rows. Removes temporary files, and files with our extension that
        are no sound extent or hold no page any more; leaves every other file alone. When the folder cannot be listed it
        is unlocked, and StoreError raised.
        """
        try:
            paths = list(self.path.iterdir())
        except OSError as error:
            self.unlock()
            raise StoreError(f"cannot list {self.path}: {error.strerror}. Choose a folder that you can read") from error
        extents = []
        for path in paths:
            if path.name.endswith(TEMPORARY):
                remove_files([path])
            elif path.name.endswith(EXTENSION):
                extent = open_extent(path)
                if extent is None or not extent.rows:
                    remove_files([path])
                    continue
                if extent.page_bytes != page_bytes:
                    extent.rows.clear()
                extents.append(extent)
        return sorted(extents, key=lambda extent: extent.used)

    def new_path(self) -> Path:
        """A name for the next extent."""
        return self.path / (uuid.uuid4().hex + EXTENSION)

    def unlock(self) -> None:
        """Let another process have the folder. To be called once."""
        # Explicit, because a forked child would hold the lock through its copy of the descriptor.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files; one that is gone already, or cannot be removed, is passed over."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def save_recency(extents: Iterable[Extent]) -> None:
    """Write when each extent was last used into its file's modification time, which `scan` reads back."""
    for extent in extents:
        with contextlib.suppress(OSError):
            os.utime(extent.path, ns=(extent.used, extent.used))
