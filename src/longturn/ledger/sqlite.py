"""What a book in a SQLite file needs so that several threads and processes can use it at once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

from sqlalchemy import Engine, event

_BUSY_SECONDS = 10.0


def prepare(engine: Engine) -> None:
    """Make each connection durable and patient. Changes nothing in the file, which may not be a book."""
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def use_wal(engine: Engine) -> None:
    """Let readers and a writer overlap. Stays with the file; a file that cannot be written is left as it is."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            with closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself when several processes switch at once.
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                return
            time.sleep(0.01)


def _set_up(connection: Any, _record: object) -> None:
    # Transactions are begun by us, so that creating the tables is one transaction too.
    connection.isolation_level = None
    # One undecodable name must not hide the rest of the book.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
    connection.execute("PRAGMA synchronous = FULL")
