"""`History`: all conversations of a person, kept for ever."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, RowMapping, insert, select

from longturn.conversation.entries import Entry
from longturn.conversation.history.coding import Undo
from longturn.conversation.history.database import Database
from longturn.conversation.history.requests import Sent
from longturn.conversation.history.schema import entries_table, requests_table, sessions_table
from longturn.conversation.history.session import Session, SessionInfo, entry_row, request_row
from longturn.errors import HistoryError
from longturn.ledger import RequestLine


@dataclass(frozen=True, slots=True)
class Made:
    """A request of a conversation from elsewhere. entries: how many the conversation had when its answer was there."""

    entries: int
    line: RequestLine
    sent: Sent | None = None


@dataclass(frozen=True)
class Whole:
    """A conversation from elsewhere, to be taken in as a session of its own.

    id: wished for, if it is free here; fork: in `branches`, after how many entries one leaves what it is a branch of:
    its `log` begins there, and its title and model are those of the whole.
    """

    title: str
    log: Sequence[Entry | Undo]
    requests: Sequence[Made] = ()
    model: str | None = None
    policy: str | None = None
    created: float = field(default_factory=time.time)
    id: str | None = None
    fork: int = 0
    branches: Sequence[Whole] = ()


class History:
    """Sessions in a database. Several threads and processes may use one at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, place: str | Path | None = None) -> History:
        """The history in a SQLite file, or in a database that a URL names (postgresql://...), made where there is none.

        place: without it, the file in the user's data folder. Raises HistoryError where the database cannot be used,
        holds something else, or was written by a newer Longturn.
        """
        return cls(Database(place))

    @property
    def name(self) -> str:
        """Where it is, without any password."""
        return self._database.name

    def create(self, title: str = "", model: str | None = None, policy: str | None = None) -> Session:
        """A new and empty session. model, policy: names of what answers and of what decides about edits."""
        return self.add(Whole(title, [], model=model, policy=policy))

    def add(self, whole: Whole) -> Session:
        """A session with all that a conversation from elsewhere holds, and one for each branch, in one transaction."""
        return self.add_all([whole])[0]

    def add_all(self, wholes: Sequence[Whole]) -> list[Session]:
        """The same for several, all in one transaction."""
        wished = [whole.id for whole in wholes if whole.id is not None]
        with self._database.reading() as connection:
            query = select(sessions_table.c.id).where(sessions_table.c.id.in_(wished))
            taken = set(connection.scalars(query)) if wished else set()
        sessions = []
        with self._database.writing() as connection:
            for whole in wholes:
                info = _add(connection, replace(whole, id=None) if whole.id in taken else whole, None)
                taken.add(info.id)
                sessions.append(Session(self._database, info))
        return sessions

    def session(self, name: str) -> Session:
        """The session of that id, or of the only id that begins so. Raises HistoryError for none and for several."""
        columns = sessions_table.c
        query = select(sessions_table).where(columns.id.startswith(name, autoescape=True)).order_by(columns.id)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(5)).mappings().all() if name else []
        exact = [row for row in rows if row["id"] == name] or rows
        if not exact:
            raise HistoryError(f"{self.name} has no session {name!r}: `longturn sessions list` shows those there are")
        if len(exact) > 1:
            raise HistoryError(f"{name!r} may be any of {', '.join(row['id'] for row in exact)}: give more of the id")
        return Session(self._database, _info(exact[0]))

    def sessions(self, limit: int | None = None) -> list[SessionInfo]:
        """All sessions, those that were used latest first; at most `limit`."""
        columns = sessions_table.c
        query = select(sessions_table).order_by(columns.updated.desc(), columns.id).limit(limit)
        with self._database.reading() as connection:
            return [_info(row) for row in connection.execute(query).mappings()]

    def close(self) -> None:
        """Let go of the database; may be called twice."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _add(connection: Connection, whole: Whole, parent: SessionInfo | None) -> SessionInfo:
    info = SessionInfo(
        id=whole.id or uuid.uuid4().hex,
        title=whole.title,
        model=whole.model,
        policy=whole.policy,
        created=whole.created,
        updated=time.time(),
        parent=None,
        fork=None,
        entries=max((record.seq + 1 for record in whole.log), default=whole.fork),
    )
    if parent is not None:
        info = replace(info, title=parent.title, model=parent.model, parent=parent.id, fork=whole.fork)
    connection.execute(insert(sessions_table), asdict(info))
    if whole.log:
        connection.execute(insert(entries_table), [entry_row(info.id, record) for record in whole.log])
    if whole.requests:
        lines = [(made.entries, replace(made.line, session=info.id), made.sent) for made in whole.requests]
        rows = [request_row(info.id, entries, line, sent) for entries, line, sent in lines]
        connection.execute(insert(requests_table), rows)
    for branch in whole.branches:
        _add(connection, branch, info)
    return info


def _info(row: RowMapping) -> SessionInfo:
    return SessionInfo(**{str(name): value for name, value in row.items()})
