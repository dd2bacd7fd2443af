"""`Session`: one branch of a conversation, and the only way to write to it."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, insert, select, update

from longturn.conversation.edits.contract import Edit
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.history.coding import Undo, checksum, decode_entry, encode_entry
from longturn.conversation.history.database import Database
from longturn.conversation.history.requests import Request, Sent, decode_request, encode_request
from longturn.conversation.history.schema import entries_table, requests_table, sessions_table
from longturn.conversation.parts import Message
from longturn.errors import HistoryError, SessionChanged
from longturn.ledger import NO_USE, RequestLine


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is known of a session without reading it. Times in unix seconds; entries: how many it has.

    parent, fork: a branch has the entries of its parent before number `fork`, and its own from there on.
    """

    id: str
    title: str
    model: str | None
    policy: str | None
    created: float
    updated: float
    parent: str | None
    fork: int | None
    entries: int


class Session:
    """One branch. What was read stays in memory, and only what came since is read again.

    A writer may only append to what it knows: where another one (of any process) was faster, SessionChanged is raised
    and nothing is written; `entries` shows what came, and then appending works again. What a method that writes has
    returned is on disk. Every method raises HistoryError when the database cannot be used. Not for several threads at
    once; `History.session` gives each its own.
    """

    def __init__(self, database: Database, info: SessionInfo) -> None:
        self._database = database
        self._info = info
        self._lineage: list[tuple[str, int]] | None = None
        self._read: list[Entry | Undo] = []
        self._shown: list[Entry] | None = []
        self._known = 0  # entries of the branch that were read or written here

    @property
    def id(self) -> str:
        """Unique among all histories."""
        return self._info.id

    @property
    def info(self) -> SessionInfo:
        """As it was when this object was made."""
        return self._info

    @property
    def next(self) -> int:
        """The number that the next entry gets, unless another writer is faster."""
        if self._lineage is None:
            self._refresh()
        return self._known

    def entries(self, until: int | None = None) -> list[Entry]:
        """What was said and edited, in order; edits show whether they were undone, and an undo is an edit of nothing.

        until: as it was when the branch had only so many entries. The list is the caller's own.

        A row that is damaged or lost is left out, with a warning that names its id.
        """
        self._refresh()
        if until is not None and until < self._known:
            return _shown([record for record in self._read if record.seq < until])
        if self._shown is None:
            self._shown = _shown(self._read)
        return list(self._shown)

    def log(self) -> list[Entry | Undo]:
        """The same as it was written, with undos as such. The list is the caller's own."""
        self._refresh()
        return list(self._read)

    def append(
        self,
        message: Message,
        born: Sequence[Edit] = (),
        line: RequestLine | None = None,
        sent: Sent | None = None,
    ) -> Said:
        """Add a message; with the line of the request that gave it and what that carried, all in one transaction."""
        said = Said(self.next, message, tuple(born))
        self._write(said, line, sent)
        return said

    def edit(
        self, edits: Sequence[Edit], reason: str, line: RequestLine | None = None, sent: Sent | None = None
    ) -> Edited:
        """Change what is sent from now on; with the line of the request that it took (a summary), all at once."""
        edited = Edited(self.next, tuple(edits), reason)
        self._write(edited, line, sent)
        return edited

    def undo(self, seq: int | None = None, check: Callable[[list[Entry]], object] | None = None) -> Edited:
        """Take back the edits number `seq`, or the latest that were not taken back yet; an undo can be undone too.

        check: is given the entries as they would be then; what it raises prevents the undo (`fold`, where later edits
        build on these). Raises HistoryError where there is nothing to undo.
        """
        entries = self.entries()
        edits = {entry.seq: entry for entry in entries if isinstance(entry, Edited)}
        if seq is None:
            seq = max((edited.seq for edited in edits.values() if edited.edits and not edited.undone), default=None)
            if seq is None:
                raise HistoryError(f"session {self.id} has no edits to undo")
        if seq not in edits:
            raise HistoryError(f"entry {seq} of session {self.id} is no edit: undo one of {sorted(edits) or 'none'}")
        if edits[seq].undone:
            raise HistoryError(f"the edits {seq} of session {self.id} are undone already")
        undo = Undo(self.next, seq)
        if check is not None:
            check(_shown([*self._read, undo]))
        self._write(undo, None, None)
        return _undo_as_edit(undo)

    def record(self, line: RequestLine, sent: Sent | None = None) -> None:
        """Keep the line of a request that changes nothing here (a title, a failed try), in one transaction."""
        mine = sessions_table.c.id == self.id
        with self._database.writing() as connection:
            connection.execute(update(sessions_table).where(mine).values(updated=time.time()))
            entries = connection.execute(select(sessions_table.c.entries).where(mine)).scalar_one()
            # It belongs to the entry that comes next: branches that are there already do not inherit it.
            connection.execute(insert(requests_table), request_row(self.id, entries + 1, line, sent))

    def rename(self, title: str) -> None:
        """Give it another title."""
        with self._database.writing() as connection:
            connection.execute(update(sessions_table).where(sessions_table.c.id == self.id).values(title=title))

    def fork(self, at: int | None = None) -> Session:
        """A new branch that shares the entries before number `at`; without it, all that there are now.

        Raises HistoryError where there are not so many.
        """
        self._refresh()
        at = self._known if at is None else at
        if not 0 <= at <= self._known:
            raise HistoryError(
                f"session {self.id} cannot be forked at {at}: give the number of its first entry that the branch "
                f"leaves behind, 0 to {self._known}"
            )
        now = time.time()
        branch = replace(self._info, id=uuid.uuid4().hex, created=now, updated=now, parent=self.id, fork=at, entries=at)
        with self._database.writing() as connection:
            connection.execute(insert(sessions_table), asdict(branch))
        return Session(self._database, branch)

    def requests(self) -> list[Request]:
        """All requests of the branch, those before it forked included, oldest first.

        A row that is damaged is left out, with a warning that names its id; the numbers of the others stay.
        """
        with self._database.reading() as connection:
            rows = [
                row
                for session, until in self._branches(connection)
                for row in connection.execute(self._asked(session, until).order_by(requests_table.c.id)).mappings()
            ]
        found = [self._decoded_request(number, row) for number, row in enumerate(rows, start=1)]
        return [request for request in found if request is not None]

    def latest_counted(self) -> Request | None:
        """The newest request of the branch that sent the view alone and whose usage is known; the others are not read.

        Its number is not looked for: it is 0.
        """
        with self._database.reading() as connection:
            for session, until in reversed(self._branches(connection)):
                query = self._asked(session, until).order_by(requests_table.c.id.desc())
                for row in connection.execution_options(yield_per=20).execute(query).mappings():
                    request = self._decoded_request(0, row)
                    if request and request.sent and not request.sent.more and request.line.use != NO_USE:
                        return request
        return None

    def _asked(self, session: str, until: int) -> Select[Any]:
        """The requests of one session that this branch has."""
        columns = requests_table.c
        query = select(requests_table).where(columns.session == session)
        return query if session == self.id else query.where(columns.entries <= until)

    def _decoded_request(self, number: int, row: RowMapping) -> Request | None:
        try:
            if checksum(row["body"]) != row["checksum"]:
                raise ValueError("it is not as it was written")
            return decode_request(number, row["session"], row["entries"], row["body"])
        except (ValueError, RecursionError, TypeError) as error:
            self._warn(f"request row {row['id']} is left out: {error}")
            return None

    def lines(self) -> list[RequestLine]:
        """The lines of what this branch itself has spent, oldest first; what is before its fork, its parent spent."""
        return [request.line for request in self.requests() if request.session == self.id]

    def request(self, number: int) -> Request:
        """One of `requests`. Raises HistoryError where there is none of that number."""
        found = self.requests()
        for request in found:
            if request.number == number:
                return request
        numbers = f"1 to {found[-1].number}" if found else "none: no request was made"
        raise HistoryError(f"session {self.id} has no request {number} that can be read; there are {numbers}")

    def _write(self, entry: Entry | Undo, line: RequestLine | None, sent: Sent | None) -> None:
        """One entry and perhaps the request it came from, in one transaction."""
        rows = sessions_table.c
        with self._database.writing() as connection:
            # The first statement takes the lock that writers queue up for, and sees what the one before has written.
            now = {"entries": entry.seq + 1, "updated": time.time()}
            agreed = update(sessions_table).where(rows.id == self.id, rows.entries == entry.seq).values(now)
            if connection.execute(agreed).rowcount != 1:
                raise SessionChanged(
                    f"somebody else wrote to session {self.id} meanwhile: nothing was written. Read what came, and "
                    "decide again, or fork the session"
                )
            connection.execute(insert(entries_table), entry_row(self.id, entry))
            if line is not None:
                connection.execute(insert(requests_table), request_row(self.id, entry.seq + 1, line, sent))
        self._take([entry], entry.seq + 1)

    def _take(self, entries: Sequence[Entry | Undo], known: int) -> None:
        self._read += entries
        self._known = known
        if any(isinstance(entry, Undo) for entry in entries):
            self._shown = None
        elif self._shown is not None:
            self._shown += [entry for entry in entries if not isinstance(entry, Undo)]

    def _refresh(self) -> None:
        """Read what came since the latest reading."""
        rows = entries_table.c
        with self._database.reading() as connection:
            branches = self._branches(connection)
            known = connection.scalar(select(sessions_table.c.entries).where(sessions_table.c.id == self.id))
            if known is None:
                raise HistoryError(f"session {self.id} is gone from the history {self._database.name}")
            if known == self._known:
                return
            found: list[Any] = []
            columns = (rows.id, rows.seq, rows.kind, rows.body, rows.checksum)
            for session, until in [*branches[:-1], (self.id, known)]:
                query = select(*columns).where(rows.session == session, rows.seq >= self._known, rows.seq < until)
                found += connection.execute(query.order_by(rows.seq)).all()
        self._take(self._decoded(found, known), known)

    def _decoded(self, rows: Sequence[Any], known: int) -> list[Entry | Undo]:
        entries: list[Entry | Undo] = []
        expected = self._known
        for row_id, seq, kind, body, kept in rows:
            if seq > expected:
                self._warn(f"entries {expected} to {seq - 1} are lost")
            expected = seq + 1
            try:
                if checksum(body) != kept:
                    raise ValueError("it is not as it was written")
                entries.append(decode_entry(seq, kind, body))
            except (ValueError, RecursionError, TypeError) as error:
                self._warn(f"row {row_id}, entry {seq}, is left out: {error}")
        if known > expected:
            self._warn(f"entries {expected} to {known - 1} are lost")
        return entries

    def _branches(self, connection: Connection) -> list[tuple[str, int]]:
        """The sessions that this branch consists of, the root first, and before which entry each ends here."""
        if self._lineage is None:
            lineage = [(self.id, self._info.entries)]
            parent, until = self._info.parent, self._info.fork
            columns = (sessions_table.c.parent, sessions_table.c.fork)
            while parent is not None and until is not None:
                lineage.insert(0, (parent, until))
                above = connection.execute(select(*columns).where(sessions_table.c.id == parent)).one()
                parent, until = above.parent, None if above.fork is None else min(until, above.fork)
            self._lineage = lineage
        return self._lineage

    def _warn(self, what: str) -> None:
        warnings.warn(f"session {self.id} of the history {self._database.name}: {what}", stacklevel=4)


def entry_row(session: str, entry: Entry | Undo) -> dict[str, Any]:
    """An entry as a row of its table. Raises HistoryError for what cannot be kept."""
    kind, body = encode_entry(entry)
    return {"session": session, "seq": entry.seq, "kind": kind, "body": body, "checksum": checksum(body)}


def request_row(session: str, entries: int, line: RequestLine, sent: Sent | None) -> dict[str, Any]:
    """A request as a row of its table. entries: how many a branch must have of `session` to inherit it."""
    body = encode_request(line, sent)
    return {"session": session, "entries": entries, "body": body, "checksum": checksum(body)}


def _shown(log: Sequence[Entry | Undo]) -> list[Entry]:
    """What was said and edited, as it looks after all undos."""
    undone: set[int] = set()
    for record in reversed(log):
        if isinstance(record, Undo) and record.seq not in undone:
            undone.add(record.target)
    edited = [_undo_as_edit(record) if isinstance(record, Undo) else record for record in log]
    return [
        replace(entry, undone=True) if isinstance(entry, Edited) and entry.seq in undone else entry for entry in edited
    ]


def _undo_as_edit(undo: Undo) -> Edited:
    """An undo begins an epoch like an edit, and changes nothing by itself."""
    return Edited(undo.seq, (), f"undo of the edits {undo.target}")
