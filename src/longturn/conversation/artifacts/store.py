"""`Artifacts`: contents by digest, in files that outlive every process and are never changed."""

from __future__ import annotations

import contextlib
import gzip
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

from longturn.conversation.artifacts.handle import HANDLE, digest_of, encode
from longturn.errors import ArtifactError

_PACKED = ".gz"
_LEAST_DIGITS = 8
_WORTH = 0.9


class Artifacts:
    """Contents by the SHA-256 of their bytes, one file each under `directory/xx/`. Safe for threads and processes.

    A file's name says what must be in it, so every read is checked; text that packs well is kept as gzip, which other
    programs read too. What `put` has returned is on disk. The folder is made, for the owner only, by the first `put`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory).absolute()

    def put(self, data: bytes | str) -> str:
        """Keep `data` and return its digest. What is there already is left alone, or mended if it is damaged.

        Raises ArtifactError when it cannot be written.
        """
        content = data if isinstance(data, bytes) else encode(data)
        digest = digest_of(content)
        if self._read(digest) == content:
            return digest
        # Neither a clock nor a name inside: equal contents make equal files.
        packed = gzip.compress(content, compresslevel=6, mtime=0)
        plain = len(packed) > _WORTH * len(content)
        folder = self.path / digest[:2]
        try:
            _make_folders(folder)
            _write(folder / (digest if plain else digest + _PACKED), content if plain else packed)
        except OSError as error:
            raise ArtifactError(
                f"cannot keep an artifact of {len(content):,} bytes in {self.path}: {error.strerror}. "
                "Free some space, or choose a folder that you can write"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The whole content. Raises ArtifactError when it is missing, or damaged on disk."""
        content = self._read(digest)
        if content is None:
            known = "is damaged on disk" if digest in self else "is not in"
            raise ArtifactError(
                f"artifact {digest[:16]} {known} {self.path}: "
                "restore the folder from a copy, or run again what made the content"
            )
        return content

    def text(self, digest: str) -> str | None:
        """The content as text, with a replacement character for each byte that is none; None for binary data.

        Raises as `get`.
        """
        content = self.get(digest)
        return None if b"\0" in content[:8192] else content.decode("utf-8", "replace")

    def range(self, digest: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` (exclusive), fewer where the content ends. Raises as `get`."""
        return self.get(digest)[max(0, start) : max(0, stop)]

    def find(self, handle: str) -> str:
        """The digest that a handle, or the beginning of a digest, stands for. Raises ArtifactError unless it is one."""
        digits = handle.strip().removeprefix(HANDLE).lower()
        if len(digits) < _LEAST_DIGITS or set(digits) - set("0123456789abcdef"):
            raise ArtifactError(
                f"{handle!r} is no artifact: give a handle as it is shown, such as {HANDLE}1f3c9a2b44d0"
            )
        found = sorted({_digest(path) for path in self._files(digits[:2]) if path.name.startswith(digits)})
        if not found:
            raise ArtifactError(f"there is no artifact {handle!r}: give a handle as it is shown in the conversation")
        if len(found) > 1:
            raise ArtifactError(f"{handle!r} stands for {len(found)} artifacts: give more digits of {', '.join(found)}")
        return found[0]

    def __contains__(self, digest: str) -> bool:
        return any(_digest(path) == digest for path in self._paths(digest) if path.exists())

    def __iter__(self) -> Iterator[str]:
        """All digests, in order."""
        folders = sorted(self.path.iterdir()) if self.path.is_dir() else []
        for folder in folders:
            yield from sorted({_digest(path) for path in self._files(folder.name)})

    def damaged(self) -> list[str]:
        """The digests whose file does not hold what its name says. Reads everything."""
        return [digest for digest in self if self._read(digest) is None]

    def _read(self, digest: str) -> bytes | None:
        """The content, or None when no file holds it soundly."""
        for path in self._paths(digest):
            with contextlib.suppress(OSError, EOFError, zlib.error):
                content = path.read_bytes()
                content = gzip.decompress(content) if path.suffix == _PACKED else content
                if digest_of(content) == digest:
                    return content
        return None

    def _paths(self, digest: str) -> tuple[Path, Path]:
        folder = self.path / digest[:2]
        return folder / (digest + _PACKED), folder / digest

    def _files(self, folder: str) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from (path for path in (self.path / folder).iterdir() if len(_digest(path)) == 64)


def _digest(path: Path) -> str:
    return path.name.removesuffix(_PACKED)


def _make_folders(folder: Path) -> None:
    if not folder.is_dir():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing, and on disk when this returns."""
    temporary = path.with_name(f"{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
