"""The tables of the book."""

from __future__ import annotations

from functools import reduce
from operator import add

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, Table, Text, and_

from longturn.ledger.use import TIERS

SCHEMA_VERSION = 1

metadata = MetaData()

meta_table = Table("longturn_book", metadata, Column("schema_version", Integer, nullable=False))


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


lines_table = Table(
    "longturn_lines",
    metadata,
    # SQLite numbers rows by itself only for a key of type INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("session", Text),
    Column("model", Text, nullable=False),
    Column("started_at", Float(53), nullable=False),
    _count("logical"),
    *(_count(f"cached_{tier}") for tier in TIERS),
    _count("computed"),
    _count("output"),
    _count("reasoning"),
    _count("written"),
    Column("ttft_ms", Float(53)),
    Column("total_ms", Float(53)),
    Column("queue_ms", Float(53)),
    Column("finish_reason", Text),
    Column("purpose", Text, nullable=False),
    Column("miss", Text),
    # JSON as text: it is decoded row by row, so that one damaged row does not end the reading of the others.
    Column("resources", Text, nullable=False),
    Index("longturn_lines_by_time", "started_at"),
    Index("longturn_lines_by_session", "session", "started_at"),
    Index("longturn_lines_by_model", "model", "started_at"),
)

_c = lines_table.c
_cached = [_c[f"cached_{tier}"] for tier in TIERS]

ADDS_UP = and_(
    _c.logical == reduce(add, _cached, _c.computed),
    *(column >= 0 for column in (*_cached, _c.computed, _c.reasoning, _c.written)),
    _c.reasoning <= _c.output,
)
"""The same rules that `TokenUse` checks, for SQL."""
