"""What a request sent comes back from the history byte for byte, in another process too."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from longturn.conversation.edits import Slide
from longturn.conversation.history import History, Sent, Session
from longturn.conversation.parts import Message, Text
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.conversation.view.sent import sent
from longturn.errors import HistoryError
from tests.conversation.history.said import a_line, user


def ask(session: Session, name: str, more: str = "") -> bytes:
    """One request with its answer; what it sent."""
    entries = session.entries()
    data = render(fold(entries)).data
    answer = Message(name, "assistant", (Text(f"answer {name}"),))
    session.append(answer, line=a_line(name), sent=Sent.of(len(entries), data, more))
    return data + more.encode()


def test_all_requests_come_back(history: History, path: Path) -> None:
    session = history.create()
    bodies = []
    for n in range(4):
        session.append(user(f"question {n}"))
        bodies.append(ask(session, f"r{n}", more="{}\n" if n == 3 else ""))
        if n == 1:
            session.edit([Slide(2)], "less")
        if n == 2:
            session.undo()
    branch = session.fork(4)
    branch.append(user("another way"))
    other = ask(branch, "b")
    assert len({*bodies, other}) == 5
    again = history.session(session.id)
    assert [sent(again, number) for number in range(1, 5)] == bodies
    assert [sent(branch, number) for number in range(1, 4)] == [*bodies[:2], other]
    code = (
        "import sys; from longturn.conversation.history import History\n"
        "from longturn.conversation.view.sent import sent\n"
        "sys.stdout.buffer.write(sent(History.open(sys.argv[1]).session(sys.argv[2]), 3))"
    )
    assert subprocess.check_output([sys.executable, "-c", code, path, session.id]) == bodies[2]


def test_what_cannot_come_back_says_why(history: History, path: Path) -> None:
    session = history.create()
    session.append(user("question"))
    ask(session, "r")
    session.record(a_line("t", "title"))
    with pytest.raises(HistoryError, match=r"request 2 .* for: title"):
        sent(session, 2)
    with pytest.raises(HistoryError, match="no request 3"):
        sent(session, 3)
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM longturn_entries WHERE seq = 0")
    with pytest.raises(HistoryError, match="other bytes"), pytest.warns(UserWarning, match="lost"):
        sent(history.session(session.id), 1)
