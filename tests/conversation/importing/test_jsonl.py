"""Our own files of sessions, and how formats are told apart."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from longturn.conversation.history import History, Sent, Session
from longturn.conversation.importing.formats import read_sessions
from longturn.conversation.importing.jsonl import write
from longturn.conversation.parts import Message, Text, Unknown
from longturn.errors import ImportFailed
from tests.conversation.history.said import Drop, a_line, user


@pytest.fixture
def session(history: History) -> Session:
    root = history.create("a title", model="m", policy="none")
    root.append(user("a"), line=a_line("r1"), sent=Sent.of(0, b"x", "more"))
    root.append(Message("m", "user", (Text("b"), Unknown({"kind": "hologram", "depth": [1, 2]}))))
    branch = root.fork(2)
    branch.edit([Drop(0)], "why")
    branch.record(a_line("title", "title"))
    branch.undo()
    return branch


def load(path: Path) -> list[Session]:
    other = History.open(path.with_name("other.db"))
    return [other.add(whole) for whole in read_sessions(path, str)]


def test_there_and_back(session: Session, path: Path) -> None:
    file = path.with_name("export.jsonl")
    file.write_bytes(b"".join(write(session)) * 2)
    same, twin = load(file)
    assert same.id == session.id != twin.id
    for again in (same, twin):
        assert again.entries() == session.entries()
        assert again.log() == session.log()
        assert (again.info.title, again.info.model, again.info.policy) == ("a title", "m", "none")
        assert [request.sent for request in again.requests()] == [Sent.of(0, b"x", "more"), None]
    assert b"".join(write(same)) == b"".join(write(session)).replace(b'"elsewhere"', json.dumps(same.id).encode())


def test_gaps_of_damaged_rows_stay(session: Session, path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM longturn_entries WHERE seq = 1")
    file = path.with_name("export.jsonl")
    [info] = [info for info in History.open(path).sessions() if info.parent]
    with pytest.warns(UserWarning, match="entries 1 to 1 are lost"):
        file.write_bytes(b"".join(write(History.open(path).session(info.id))))
    [again] = load(file)
    with pytest.warns(UserWarning, match="entries 1 to 1 are lost"):
        assert [entry.seq for entry in again.entries()] == [0, 2, 3]


def test_an_empty_session_survives(history: History, path: Path) -> None:
    file = path.with_name("export.jsonl")
    file.write_bytes(b"".join(write(history.create("nothing yet"))))
    [again] = load(file)
    assert (again.info.title, again.entries()) == ("nothing yet", [])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no format that is known"),
        ("dear diary", "no format that is known"),
        ('{"type": "summary", "leafUuid": "x"}\n', "holds no session"),
        ('{"longturn": 9, "id": "x"}\n', "version 9 .* upgrade"),
        ('{"longturn": 1}\n', "line 1: .*`id`"),
        ('{"longturn": 1, "id": "x"}\n{"seq": 0, "kind": "sung", "entry": {}}\n', "line 2: .*sung"),
        ('{"longturn": 1, "id": "x"}\n{"entries": 1, "request": {"line": {}}}\n', "line 2: "),
        (
            '{"longturn": 1, "id": "x"}\n' + '{"seq": 0, "kind": "undone", "entry": {"target": 0}}\n' * 2,
            "line 3: .*after",
        ),
    ],
)
def test_files_that_cannot_be_read(path: Path, content: str, told: str) -> None:
    path.write_text(content)
    with pytest.raises(ImportFailed, match=told):
        read_sessions(path, str)


def test_places_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(ImportFailed, match="cannot be read: No such file"):
        read_sessions(path, str)
    path.write_bytes(b"\x1f\x8bnot gzip at all")
    with pytest.raises(ImportFailed, match="cannot be read"):
        read_sessions(path, str)
    with pytest.raises(ImportFailed, match="longturn, opencode, claude-code"):
        read_sessions(path, str, format="diary")
