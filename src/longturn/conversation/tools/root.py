"""`Root`: a folder that nothing leads out of."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from longturn.errors import ToolError

# Read and search skip these: what version control and package managers keep for themselves.
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"})


class Root:
    """The files below a folder. All methods raise ToolError for what is outside, whether by `..`, an absolute path or a
    link, and for what is not there."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder).resolve()
        if not self.path.is_dir():
            raise ToolError(f"{self.path} is no folder: choose one that is there")

    def find(self, name: str) -> Path:
        """The real path of `name`, which is relative to the root or begins with it."""
        if "\0" in name:
            raise ToolError("a path with a zero byte names nothing")
        try:
            # With all links followed: what is compared is where it really is.
            found = (self.path / name).resolve(strict=True)
        except (OSError, RuntimeError):
            raise ToolError(f"there is no {name!r} here: `list` shows what there is") from None
        if not found.is_relative_to(self.path):
            raise ToolError(f"{name!r} is outside of the folder that may be read")
        return found

    def name(self, path: Path) -> str:
        """A path as models see it: relative to the root, with `/`."""
        return path.relative_to(self.path).as_posix()

    def read(self, path: Path, most: int) -> bytes:
        """At most `most` bytes of a file that `find` has found."""
        # A link or a pipe may have taken its place since it was found; neither is followed or waited for.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            raise ToolError(f"{self.name(path)!r} cannot be read: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolError(f"{self.name(path)!r} is no file: `list` shows what is in a folder")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(most)
        finally:
            os.close(descriptor)

    def files(self, folder: Path) -> Iterator[Path]:
        """All regular files below `folder`, in order; links are not followed."""
        for where, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            for name in sorted(names):
                path = Path(where, name)
                if path.is_file() and not path.is_symlink():
                    yield path
