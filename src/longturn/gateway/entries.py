"""`Entries`: what the gateway knows of a request beyond its line in the book, in a table beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from longturn.errors import LedgerError
from longturn.gateway.counters import Counted
from longturn.ledger import sqlite


@dataclass(frozen=True, slots=True)
class Entry:
    """One request, beside the line of the same `request_id`. Names, counts and hashes; no content.

    key: hash of the API key. status: of HTTP, None where there was no answer. outcome: see `longturn.gateway.proxy`.
    error: the type that the answer reports. ended: whether the answer came to its end; garbled: events that were no
    JSON. trouble: why the exchange could not be read. silence_ms: longest time without a byte.
    prompt_hash: of all segments; segments: how many.
    mechanism: why a cached prefix was missed, None where nothing was. segment, offset: where the prompts part.
    lost_tokens, lost_usd: what that cost. expected: cached tokens that were to be expected, None where nothing is
    known; drift: reported less expected, where they do not fit. usd: price, None where unknown. detail: the verdict as
    JSON with what it quotes, only where content is kept.
    """

    request_id: str
    started_at: float
    upstream: str
    dialect: str
    key: str | None
    status: int | None
    outcome: str
    error: str | None
    ended: bool
    garbled: int
    trouble: str | None
    silence_ms: float
    sent_bytes: int
    got_bytes: int
    prompt_hash: str | None
    segments: int
    mechanism: str | None = None
    intentional: bool = False
    confidence: float | None = None
    segment: str | None = None
    offset: int | None = None
    lost_tokens: int = 0
    lost_usd: float | None = None
    expected: int | None = None
    drift: int | None = None
    usd: float | None = None
    detail: str | None = None


_KINDS: dict[str, TypeEngine[Any]] = {"str": Text(), "float": Float(53), "int": BigInteger(), "bool": Boolean()}

_metadata = MetaData()
entries_table = Table(
    "longturn_gateway",
    _metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    *(
        Column(field.name, _KINDS[str(field.type).removesuffix(" | None")], nullable="None" in str(field.type))
        for field in fields(Entry)
    ),
    Index("longturn_gateway_by_request", "request_id"),
    Index("longturn_gateway_by_key", "key", "started_at"),
)

counters_table = Table(
    "longturn_gateway_counters",
    _metadata,
    Column("upstream", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("engine", Text, nullable=False),
    Column("logical", BigInteger),
    Column("cached", BigInteger),
)


class Entries:
    """Append-only. url: the book's, which must have been opened before. Every method raises LedgerError."""

    def __init__(self, url: str) -> None:
        with _as_ledger_error():
            self._engine = create_engine(url)
            if self._engine.dialect.name == "sqlite":
                sqlite.prepare(self._engine)
            _metadata.create_all(self._engine)

    def append_many(self, entries: Iterable[Entry]) -> None:
        """Add entries in one transaction."""
        rows = [asdict(entry) for entry in entries]
        if rows:
            with _as_ledger_error(), self._engine.begin() as connection:
                connection.execute(insert(entries_table), rows)

    def all(self, since: float | None = None) -> Iterator[Entry]:
        """Entries, oldest first. since: unix seconds."""
        query = select(entries_table).order_by(entries_table.c.started_at, entries_table.c.id)
        if since is not None:
            query = query.where(entries_table.c.started_at >= since)
        with _as_ledger_error(), self._engine.connect() as connection:
            for row in connection.execution_options(yield_per=500).execute(query).mappings():
                yield Entry(**{field.name: row[field.name] for field in fields(Entry)})

    def count(self, counted: Counted) -> None:
        """Add what an engine had counted at some time."""
        with _as_ledger_error(), self._engine.begin() as connection:
            connection.execute(insert(counters_table), asdict(counted))

    def counted(self, upstream: str) -> Counted | None:
        """The latest count that was added for an upstream."""
        columns = counters_table.c
        query = select(counters_table).where(columns.upstream == upstream).order_by(columns.at.desc()).limit(1)
        with _as_ledger_error(), self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        return Counted(**{str(name): value for name, value in row.items()}) if row else None

    def spent(self, since: float) -> dict[str | None, float]:
        """US dollars by key hash."""
        columns = entries_table.c
        query = (
            select(columns.key, func.sum(columns.usd))
            .where(columns.started_at >= since, columns.usd.is_not(None))
            .group_by(columns.key)
        )
        with _as_ledger_error(), self._engine.connect() as connection:
            return {key: float(usd) for key, usd in connection.execute(query)}

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _as_ledger_error() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise LedgerError(
            f"the gateway's table cannot be used: {cause}. Check that the ledger can be written"
        ) from error
