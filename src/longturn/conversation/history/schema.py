"""The tables of the history, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text, UniqueConstraint

REVISION = "0001"
"""The newest migration; a test checks that it is."""

VERSION_TABLE = "longturn_history_version"

metadata = MetaData()


def _row_id() -> Column[int]:
    # SQLite numbers rows by itself only for a key of type INTEGER.
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _session() -> Column[str]:
    return Column("session", Text, ForeignKey("longturn_sessions.id"), nullable=False)


sessions_table = Table(
    "longturn_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("model", Text),
    Column("policy", Text),
    Column("created", Float(53), nullable=False),
    Column("updated", Float(53), nullable=False),
    # A branch has the entries of its parent before `fork`, and its own from there on.
    Column("parent", Text, ForeignKey("longturn_sessions.id")),
    Column("fork", Integer),
    # How many entries the branch has, those of its parent included: the next one's number, and what writers agree on.
    Column("entries", Integer, nullable=False),
)

entries_table = Table(
    "longturn_entries",
    metadata,
    _row_id(),
    _session(),
    Column("seq", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    # JSON as text: it is decoded row by row, so that one damaged row does not end the reading of the others.
    Column("body", Text, nullable=False),
    Column("checksum", Text, nullable=False),
    UniqueConstraint("session", "seq", name="longturn_entries_by_seq"),
)

requests_table = Table(
    "longturn_requests",
    metadata,
    _row_id(),
    _session(),
    # How many entries the branch had when the request was recorded, and so which branches inherit it.
    Column("entries", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("checksum", Text, nullable=False),
    Index("longturn_requests_by_session", "session"),
)
