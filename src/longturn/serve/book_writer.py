"""Lines of finished requests on their way into the book, by a thread, so that nobody waits for the disk."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

from longturn.errors import LedgerError

if TYPE_CHECKING:
    from longturn.ledger import RequestLine
    from longturn.ledger.book import Book

log = logging.getLogger(__name__)


class BookWriter:
    """Appends lines to `book`, several at a time. Use as a context manager; leaving it writes what is left.

    A book that fails costs its lines and not the requests: the log says so once, until it works again.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._lines: SimpleQueue[RequestLine | None] = SimpleQueue()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="longturn-book", daemon=True)

    def write(self, line: RequestLine) -> None:
        """Have `line` written soon. Returns at once; may be called from any thread."""
        self._lines.put(line)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.put(None)
        self._thread.join()

    def _run(self) -> None:
        more = True
        while more:
            batch = [self._lines.get()]
            while not self._lines.empty():
                batch.append(self._lines.get())
            more = None not in batch
            self._append([line for line in batch if line is not None])

    def _append(self, lines: list[RequestLine]) -> None:
        try:
            self._book.append_many(lines)
            self._failing = False
        except LedgerError as error:
            if not self._failing:
                log.error("requests are served, but their lines are lost: %s", error)
            self._failing = True
