"""What all trace files have in common: plain or gzip, read line by line, and bad lines that are named."""

from __future__ import annotations

import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from longturn.errors import TraceError
from longturn.lab.trace.form import TraceRequest

Record = TypeVar("Record")

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE = 1 << 28
"""No line of a trace is longer, in bytes; a file without line ends must not fill the memory."""

BROKEN_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


class _CutOff(TraceError):
    """The compressed data end or break in the middle."""


class TraceFile:
    """A file that is read from its beginning as often as needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0  # of the file as it lies on disk, in the latest pass: for progress bars

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers from 1 and lines, blank ones left out. Raises TraceError where the file cannot be read on.

        A line beyond LONGEST_LINE comes as its first LONGEST_LINE bytes, which no decoder accepts.
        """
        number = 0
        try:
            with open(self.path, "rb") as raw, self._unpacked(raw) as file:
                while line := file.readline(LONGEST_LINE):
                    number += 1
                    if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                        while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                            pass
                    self.bytes_read = raw.tell()
                    if line.strip():
                        yield number, line
        except BROKEN_GZIP as error:
            raise _CutOff(f"{self.path}, after line {number}: the gzip data are broken or cut off ({error})") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Numbers from 1 and the raw entries of a file that is one JSON array. Raises TraceError."""
        for number, entry in enumerate(self.decoded(msgspec.json.Decoder(list[msgspec.Raw])), start=1):
            yield number, bytes(entry)

    def decoded(self, decoder: msgspec.json.Decoder[Record]) -> Record:
        """What a file that is one JSON value holds. Raises TraceError, with the line where the JSON breaks."""
        content = self._content()
        try:
            return decoder.decode(content)
        except (ValueError, RecursionError) as error:
            byte = re.search(r"\(byte (\d+)\)", str(error))
            line = content.count(b"\n", 0, int(byte[1])) + 1 if byte else 1
            raise TraceError(f"{self.path}, line {line}: {error}. Mend the file.") from None

    def _content(self) -> bytes:
        try:
            with open(self.path, "rb") as raw, self._unpacked(raw) as file:
                content = file.read()
                self.bytes_read = raw.tell()
                return content
        except BROKEN_GZIP as error:
            raise TraceError(f"{self.path}: the gzip data are broken or cut off ({error})") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unpacked(self, raw: BinaryIO) -> BinaryIO:
        magic = raw.read(len(GZIP_MAGIC))
        raw.seek(0)
        return cast("BinaryIO", gzip.open(raw, "rb")) if magic == GZIP_MAGIC else raw

    def _unreadable(self, error: OSError) -> TraceError:
        return TraceError(f"{self.path} cannot be read: {error.strerror or error}. Give a trace file, plain or gzip.")


class FileTrace(ABC):
    """A trace that lies in a file; implements `Trace`.

    skipped: malformed lines left out in the latest pass, which are an error unless `skip_bad` is set; a note tells of
    them once a pass has met them.
    """

    def __init__(self, file: TraceFile, *, unit: int, notes: list[str], skip_bad: bool) -> None:
        self.file = file
        self.name = file.path.name
        self.unit = unit
        self.notes = list(notes)
        self.skipped = 0
        self._premises = tuple(notes)
        self._skip_bad = skip_bad

    @abstractmethod
    def __iter__(self) -> Iterator[TraceRequest]: ...

    def records(
        self, decode: Callable[[bytes], Record], pieces: Iterable[tuple[int, bytes]] | None = None, kind: str = "line"
    ) -> Iterator[tuple[int, Record]]:
        """Numbers and what `decode` makes of the lines, or other pieces; a ValueError of it makes one malformed."""
        self.skipped, first = 0, ""
        try:
            for number, piece in self.file.lines() if pieces is None else pieces:
                try:
                    record = decode(piece)
                except (ValueError, RecursionError) as error:
                    where = f"{kind} {number}: {error}"
                    if not self._skip_bad:
                        raise self._malformed(where) from None
                    self.skipped, first = self.skipped + 1, first or where
                else:
                    yield number, record
        except _CutOff as error:
            if not self._skip_bad:
                raise
            self.skipped, first = self.skipped + 1, first or str(error)
        if self.skipped:
            self.notes = [*self._premises, f"Left out as malformed: {self.skipped}, the first being {first}."]

    def _malformed(self, where: str) -> TraceError:
        return TraceError(f"{self.file.path}, {where}. Mend it, or leave such pieces out with --skip-bad.")
