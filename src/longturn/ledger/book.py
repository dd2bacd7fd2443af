"""`Book`: every request line, kept in a database (a SQLite file by default, PostgreSQL by URL)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from sqlalchemy import RowMapping, create_engine, func, insert, inspect, not_, select
from sqlalchemy.exc import SQLAlchemyError

from longturn.errors import LedgerError
from longturn.ledger import sqlite
from longturn.ledger.line import RequestLine
from longturn.ledger.schema import ADDS_UP, SCHEMA_VERSION, lines_table, meta_table, metadata
from longturn.ledger.use import TIERS, TokenUse


@dataclass(frozen=True, slots=True)
class Total:
    """The sum over one session or model; `name` is None for the requests outside any session."""

    name: str | None
    requests: int
    use: TokenUse


class Book:
    """Append-only lines in a database. Several threads and processes may append to and read one book at once.

    url: a SQLAlchemy URL, such as "sqlite:///book.db" or "postgresql+psycopg://host/name". An empty database becomes a
    new book.

    Every method raises LedgerError when the database cannot be used; opening also does when the database holds
    something else or was written by a newer Longturn.
    """

    def __init__(self, url: str = "sqlite:///longturn-book.db") -> None:
        with _as_ledger_error(f"cannot open the book {url}"):
            self._engine = create_engine(url)
            self.url = self._engine.url.render_as_string(hide_password=True)
        if self._engine.dialect.name == "sqlite":
            sqlite.prepare(self._engine)
        try:
            with _as_ledger_error(f"cannot open the book {self.url}"):
                self._open()
        except BaseException:
            self.close()
            raise

    def append(self, line: RequestLine) -> None:
        """Add one line; it is on disk when this returns."""
        self.append_many([line])

    def append_many(self, lines: Iterable[RequestLine]) -> None:
        """Add lines in one transaction: all of them are on disk when this returns, or none."""
        rows = [_to_row(line) for line in lines]
        if rows:
            with _as_ledger_error(f"cannot append to the book {self.url}"), self._engine.begin() as connection:
                connection.execute(insert(lines_table), rows)

    def lines(
        self,
        session: str | None = None,
        model: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> Iterator[RequestLine]:
        """The lines, oldest first; a filter that is None lets everything pass.

        since, until: unix seconds, from `since` on and before `until`.
        limit: at most so many, counted from the oldest.

        A row that is no sound line is skipped, with a warning that names its id.
        """
        columns = lines_table.c
        query = select(lines_table).order_by(columns.started_at, columns.id).limit(limit)
        if session is not None:
            query = query.where(columns.session == session)
        if model is not None:
            query = query.where(columns.model == model)
        if since is not None:
            query = query.where(columns.started_at >= since)
        if until is not None:
            query = query.where(columns.started_at < until)
        with _as_ledger_error(f"cannot read the book {self.url}"), self._engine.connect() as connection:
            for row in connection.execution_options(yield_per=500).execute(query).mappings():
                try:
                    line = _from_row(row)
                except (LedgerError, ValueError, TypeError) as error:
                    warnings.warn(f"row {row['id']} of the book {self.url} is skipped: {error}", stacklevel=2)
                    continue
                yield line

    def totals(self, by: Literal["session", "model"] = "session") -> list[Total]:
        """Sums by session or model, the most logical tokens first.

        Rows whose counts do not add up are left out, with a warning that says how many.
        """
        if by not in ("session", "model"):
            raise LedgerError(f"totals by {by!r} are not kept: use 'session' or 'model'")
        columns = lines_table.c
        names = ["logical", *(f"cached_{tier}" for tier in TIERS), "computed", "output", "reasoning", "written"]
        sums = [func.sum(columns[name]).label(name) for name in names]
        query = select(columns[by].label("name"), func.count().label("requests"), *sums).where(ADDS_UP)
        query = query.group_by(columns[by]).order_by(func.sum(columns.logical).desc(), columns[by])
        with _as_ledger_error(f"cannot read the book {self.url}"), self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
            unsound = connection.scalar(select(func.count()).select_from(lines_table).where(not_(ADDS_UP)))
        if unsound:
            warnings.warn(f"{unsound} rows of the book {self.url} do not add up and are left out", stacklevel=2)
        return [Total(row["name"], row["requests"], _use_of(row)) for row in rows]

    def close(self) -> None:
        """Let go of the database. The book may be closed twice."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if not self._is_book():
            try:
                self._create()
            except SQLAlchemyError:
                # Another process may have created the same book meanwhile.
                if not self._is_book():
                    raise
        if self._engine.dialect.name == "sqlite":
            # Only now, when the file is known to be a book: nobody else's database is touched.
            sqlite.use_wal(self._engine)

    def _is_book(self) -> bool:
        tables = inspect(self._engine).get_table_names()
        if meta_table.name not in tables:
            if tables:
                raise LedgerError(
                    f"{self.url} is not a Longturn book: it holds {', '.join(sorted(tables)[:3])}. "
                    "Give the book a database of its own"
                )
            return False
        with self._engine.connect() as connection:
            version = connection.scalar(select(meta_table.c.schema_version))
        if version != SCHEMA_VERSION:
            raise LedgerError(
                f"the book {self.url} has schema {version}, this Longturn reads {SCHEMA_VERSION}: "
                "upgrade Longturn, or choose another book"
            )
        return True

    def _create(self) -> None:
        with self._engine.begin() as connection:
            # No check beforehand: the first statement must be a write, so that a second creator waits for the first.
            metadata.create_all(connection, checkfirst=False)
            connection.execute(insert(meta_table), {"schema_version": SCHEMA_VERSION})


@contextmanager
def _as_ledger_error(what: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        cause = getattr(error, "orig", None) or error
        raise LedgerError(
            f"{what}: {cause}. Check the URL, that the folder exists, and that it can be written"
        ) from error


def _to_row(line: RequestLine) -> dict[str, Any]:
    row = line.to_dict()
    cached = row.pop("cached")
    row["resources"] = json.dumps(row["resources"])
    return row | {f"cached_{tier}": cached.get(tier, 0) for tier in TIERS}


def _from_row(row: RowMapping) -> RequestLine:
    cached = {tier: row[f"cached_{tier}"] for tier in TIERS}
    # SQLAlchemy's column names are a kind of string that msgspec does not take for one.
    fields = {str(name): value for name, value in row.items()}
    return RequestLine.from_dict({**fields, "cached": cached, "resources": json.loads(row["resources"])})


def _use_of(row: RowMapping) -> TokenUse:
    # PostgreSQL sums whole numbers to decimals.
    return TokenUse(
        logical=int(row["logical"]),
        cached={tier: int(row[f"cached_{tier}"]) for tier in TIERS},
        computed=int(row["computed"]),
        output=int(row["output"]),
        reasoning=int(row["reasoning"]),
        written=int(row["written"]),
    )
