"""The database under a history: opened, brought to the newest schema, and safe to share between processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, inspect, make_url, select, table, text
from sqlalchemy import column as plain_column
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from longturn.conversation.history.schema import REVISION, VERSION_TABLE
from longturn.errors import HistoryError
from longturn.ledger import sqlite

_MIGRATING = 0x6C6F6E67
"""Number of PostgreSQL's advisory lock that one process holds while it migrates."""


def default_path() -> Path:
    """$LONGTURN_DATA, else $XDG_DATA_HOME/longturn, else ~/.local/share/longturn; therein history.db."""
    if own := os.environ.get("LONGTURN_DATA"):
        return Path(own) / "history.db"
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "longturn" / "history.db"


class Database:
    """Connections to one database that holds a history. place: as `History.open` takes it.

    All methods raise HistoryError when the database cannot be used.
    """

    def __init__(self, place: str | Path | None) -> None:
        url = _url(place)
        self.name = url.render_as_string(hide_password=True)
        with self._as_history_error("cannot open"):
            if url.drivername == "sqlite" and url.database:
                _make_folder(Path(url.database))
            # A server may have closed a connection that was idle for long; each is tried before it is used.
            self.engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
        if self.engine.dialect.name == "sqlite":
            sqlite.prepare(self.engine)
        try:
            with self._as_history_error("cannot open"):
                self._open()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection to read with."""
        with self._as_history_error("cannot read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction: all of it is on disk afterwards, or nothing where something is raised.

        Its first statement must be a write, so that two writers queue up instead of refusing each other.
        """
        with self._as_history_error("cannot write to"), self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the database; may be called twice."""
        self.engine.dispose()

    def _open(self) -> None:
        with self.engine.connect() as connection:
            revision = self._revision(connection)
        if revision != REVISION:
            self._migrate()
        if self.engine.dialect.name == "sqlite":
            # Only now, when the file is known to be a history: nobody else's database is touched.
            sqlite.use_wal(self.engine)

    def _revision(self, connection: Connection) -> str | None:
        """The newest migration that was run; None where nothing was yet. Raises for another program's database."""
        tables = inspect(connection).get_table_names()
        if VERSION_TABLE in tables:
            return connection.scalar(select(table(VERSION_TABLE, plain_column("version_num"))))
        if tables:
            raise HistoryError(
                f"{self.name} is not a Longturn history: it holds {', '.join(sorted(tables)[:3])}. "
                "Give the history a database of its own"
            )
        return None

    def _migrate(self) -> None:
        # Alembic is slow to import, and seldom needed.
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", "longturn.conversation.history:migrations")
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        with self.engine.connect() as connection:
            # One process at a time, and what it has done is looked at anew by the next.
            if self.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("COMMIT")  # of the reading transaction that SQLAlchemy has begun
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
            revision = self._revision(connection)
            if revision is not None and revision not in known:
                raise HistoryError(
                    f"the history {self.name} has schema {revision}, this Longturn reads {REVISION}: "
                    "upgrade Longturn, or choose another history"
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()

    @contextmanager
    def _as_history_error(self, what: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, ModuleNotFoundError, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise HistoryError(
                f"{what} the history {self.name}: {cause}. Check the URL, that the folder exists, and that it can be "
                "written"
            ) from error


def _url(place: str | Path | None) -> URL:
    if place is None:
        place = default_path()
    if isinstance(place, Path) or "://" not in place:
        return URL.create("sqlite", database=str(Path(place).expanduser()))
    try:
        url = make_url(place)
    except (ArgumentError, ValueError) as error:
        raise HistoryError(f"{place!r} is no URL of a database ({error}). Give a path, or postgresql://...") from None
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgresql", "postgres") else url


def _make_folder(file: Path) -> None:
    """Only people themselves need to read what they have said."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
