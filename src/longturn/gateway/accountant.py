"""The accountant: a process beside the proxy that reads along, and does all that takes time.

It reads frames on standard input until that ends, writes lines and entries into the book, and answers with charges on
standard output. A process and not a thread, because decoding a long request holds Python's lock while streams wait.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from io import RawIOBase

from longturn.errors import LedgerError
from longturn.gateway import counters, frames
from longturn.gateway.account import Bookkeeper, Told
from longturn.gateway.answer import Answer, AnswerReader
from longturn.gateway.decoding import CannotDecode, decoder
from longturn.gateway.entries import Entries, Entry
from longturn.gateway.frames import Answered, Asked, Charged, Ended, Got, Ready, Sent
from longturn.gateway.routes import PUBLIC
from longturn.ledger import RequestLine
from longturn.ledger.book import Book

log = logging.getLogger("longturn.gateway")

HELD = 256 << 20
"""Bytes of all requests that are under way together; one that comes on top is counted, and not explained."""
BATCH = 200
"""Lines that are written at once, at most."""
LONGEST_WAIT = 1.0
"""Seconds that lines of a busy gateway wait for others to be written with."""
NICENESS = 5
"""Streams come first."""


@dataclass(slots=True)
class Open:
    """An exchange that is under way. got: bytes of its answer so far."""

    asked: Asked
    body: bytearray = field(default_factory=bytearray)
    whole: bool = True
    answered: Answered | None = None
    reader: AnswerReader | None = None
    got: int = 0

    def told(self, ended: Ended) -> Told:
        """The whole of it."""
        body: bytes | None = None
        if self.whole and not ended.lost:
            with contextlib.suppress(CannotDecode):
                body = decoder(self.asked.encoding)(bytes(self.body))
        return Told(self.asked, body, self.answered, self.reader.finish() if self.reader else Answer(), ended)


class Accountant:
    """Follows many exchanges at once. charged: called with what each has cost, once it is in the book."""

    def __init__(self, bookkeeper: Bookkeeper, book: Book, entries: Entries, charges: RawIOBase) -> None:
        self._bookkeeper = bookkeeper
        self._book = book
        self._entries = entries
        self._charges = charges
        self._open: dict[int, Open] = {}
        self._done: list[tuple[RequestLine, Entry]] = []
        self._failing = False
        self._held = 0

    def hear(self, frame: frames.Frame) -> None:
        """The next frame."""
        match frame:
            case Asked():
                self._open[frame.id] = Open(frame)
            case Sent() | Answered() | Got() | Ended():
                # Not there: what began before another accountant had to be started.
                if (exchange := self._open.get(frame.id)) is not None:
                    self._follow(exchange, frame)
        if len(self._done) >= BATCH:
            self.write()

    def _follow(self, exchange: Open, frame: Sent | Answered | Got | Ended) -> None:
        match frame:
            case Sent():
                self._hold(exchange, frame.data)
            case Answered():
                exchange.answered = frame
                exchange.reader = AnswerReader(exchange.asked.dialect, frame.kind, frame.encoding)
            case Got():
                exchange.got += len(frame.data)
                if exchange.reader is not None:
                    exchange.reader.feed(frame.data)
            case Ended():
                del self._open[frame.id]
                self._held -= len(exchange.body)
                told = exchange.told(frame)
                try:
                    self._done.append(self._bookkeeper.account(told))
                except Exception as error:
                    # It must cost neither the others their lines nor this one its counts. Without a traceback: what
                    # stands there could be content.
                    log.error("a request cannot be explained (%s): please report it", type(error).__name__)
                    self._done.append(self._bookkeeper.account(replace(told, body=None)))

    def _hold(self, exchange: Open, data: bytes) -> None:
        exchange.whole = exchange.whole and self._held + len(data) <= HELD
        if exchange.whole:
            exchange.body += data
            self._held += len(data)

    def abandoned(self) -> None:
        """The gateway is gone: what is under way has ended with it."""
        now = time.time()
        for exchange in list(self._open.values()):
            asked, got = exchange.asked, exchange.got
            total = max(0.0, now - asked.started_at) * 1000
            self.hear(Ended(asked.id, "abandoned", total, None, 0.0, len(exchange.body), got))

    def write(self) -> None:
        """Put what is done into the book. A book that fails costs its lines; the log says so until it works again."""
        done, self._done = self._done, []
        if not done:
            return
        try:
            self._entries.append_many(entry for _, entry in done)
            self._book.append_many(line for line, _ in done)
            self._failing = False
        except LedgerError as error:
            if not self._failing:
                log.error("requests are passed on, but their lines are lost: %s", error)
            self._failing = True
        # A gateway that is gone needs no charges any more, but its lines are still written.
        with contextlib.suppress(BrokenPipeError):
            for _, entry in done:
                self._charges.write(frames.packed(Charged(entry.key, entry.started_at, entry.usd or 0.0)))


def main() -> None:
    """Serve one proxy, until it closes the pipe or is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--prices")
    parser.add_argument("--content", action="store_true")
    parser.add_argument("--engine", action="append", default=[], help="an upstream that may count tokens itself")
    given = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel("WARNING")
    # Ctrl-C reaches the whole group; the proxy says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    told, charges = sys.stdin.buffer, open(sys.stdout.fileno(), "wb", buffering=0)  # noqa: SIM115
    with Book(given.ledger) as book, Entries(given.ledger) as entries:
        accountant = Accountant(Bookkeeper(given.prices, given.content), book, entries, charges)
        for url in given.engine:
            if url not in PUBLIC.values():
                # An engine that is not there yet will begin at 0.
                entries.count(counters.read(url) or counters.Counted(url, time.time(), "", 0, 0))
        charges.write(frames.packed(Ready()))
        written = time.monotonic()
        while (frame := frames.read(told)) is not None:
            accountant.hear(frame)
            idle = not select.select([told], [], [], 0)[0]
            if idle or time.monotonic() - written > LONGEST_WAIT:
                accountant.write()
                written = time.monotonic()
        accountant.abandoned()
        accountant.write()


if __name__ == "__main__":
    main()
