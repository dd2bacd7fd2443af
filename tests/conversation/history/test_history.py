"""What a history keeps, on both kinds of databases."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from longturn.conversation.entries import Edited, Said
from longturn.conversation.history import History, Made, Sent, Session, Whole
from longturn.conversation.parts import (
    File,
    Message,
    Reasoning,
    Signal,
    Summary,
    Text,
    ToolCall,
    ToolResult,
    Tools,
    Unknown,
)
from longturn.errors import HistoryError, SessionChanged
from tests.conversation.history.said import Drop, a_line, user
from tests.pace import fastest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("kind"), inner, max_size=3),
    max_leaves=6,
)


def texts(session: Session) -> list[str]:
    return [entry.message.parts[0].text for entry in session.entries() if isinstance(entry, Said)]  # type: ignore[union-attr]


def test_everything_comes_back_in_another_process_life(place: str) -> None:
    message = Message(
        "m1",
        "assistant",
        (
            Text("héllo \x00 \U0001f600", synthetic=True),
            Reasoning("hm", {"signature": "abc", "n": [1, 2.5, None]}),
            ToolCall("c1", "read", '{"path": "a",  "odd":1}'),
            ToolResult("c1", "text", "a", error=True),
            File("a.png", "image/png", "0" * 64, 9),
            Summary("in short", 0, 3),
            Tools(({"type": "function", "function": {"name": "read"}},)),
            Signal("pin", 3.0, 2),
            Unknown({"kind": "hologram", "depth": 3}),
        ),
        time=1234.5,
        model="m",
        request="r1",
    )
    with History.open(place) as history:
        session = history.create("a title", model="m", policy="none")
        said = session.append(message, [Drop(7)], a_line("r1"), Sent.of(0, b"bytes"))
        edited = session.edit([Drop(1), Drop(2)], "because")
    with History.open(place) as history:
        again = history.session(session.id)
        assert (again.info.title, again.info.model, again.info.policy) == ("a title", "m", "none")
        assert again.entries() == [said, edited] == session_entries(message)
        [request] = again.requests()
        assert (request.number, request.line, request.sent) == (1, a_line("r1"), Sent.of(0, b"bytes"))
        assert request.sent is not None
        assert request.sent.matches(b"bytes")
        assert not request.sent.matches(b"bytez")


def session_entries(message: Message) -> list[Said | Edited]:
    return [Said(0, message, (Drop(7),)), Edited(1, (Drop(1), Drop(2)), "because")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(data=st.lists(JSON, max_size=3))
def test_unknown_parts_are_kept_as_they_came(history: History, data: list[object]) -> None:
    message = Message("m", "user", (*(Unknown(each) for each in data), Text("after")))
    session = history.create()
    session.append(message)
    assert history.session(session.id).entries() == [Said(0, message)]


@pytest.mark.parametrize("data", [{"kind": "text", "text": "x"}, {"kind": "unknown", "data": 1}, {"kind": "text"}, 3])
def test_an_unknown_part_that_looks_like_one_of_ours_stays_unknown(history: History, data: object) -> None:
    session = history.create()
    session.append(Message("m", "user", (Unknown(data),)))
    [said] = history.session(session.id).entries()
    assert isinstance(said, Said)
    assert said.message.parts == (Unknown(data),)


def test_an_append_is_one_transaction(place: str) -> None:
    with History.open(place) as history:
        session = history.create()
        session.entries()
        counted: list[str] = []
        for name in ("commit", "rollback"):
            event.listen(history._database.engine, name, lambda _, name=name: counted.append(name))
        session.append(user("a"), line=a_line("r"), sent=Sent.of(0, b""))
        session.edit([Drop(0)], "why", line=a_line("s"))
        session.record(a_line("t"))
        assert counted == ["commit"] * 3


def test_a_failing_append_writes_nothing(place: str) -> None:
    with History.open(place) as history:
        session = history.create()
        session.append(user("a"))
        before = history.sessions()
        with pytest.raises(HistoryError, match="message bad cannot be kept"):
            session.append(Message("bad", "user", (Text("\ud800"),)), line=a_line("r"))
        other = history.session(session.id)
        assert texts(other) == ["a"]
        assert (other.requests(), history.sessions()) == ([], before)
        session.append(user("b"))
        assert texts(other) == ["a", "b"]


def test_a_stale_writer_is_refused_until_it_has_read(place: str) -> None:
    with History.open(place) as one, History.open(place) as two:
        mine = one.create()
        mine.append(user("a"))
        other = two.session(mine.id)
        other.append(user("b"))
        for write in (lambda: mine.append(user("c"), line=a_line("r")), lambda: mine.edit([Drop(0)], "why")):
            with pytest.raises(SessionChanged, match="nothing was written"):
                write()
        assert texts(mine) == ["a", "b"]
        assert mine.next == 2
        assert mine.append(user("c")).seq == 2
        assert texts(other) == ["a", "b", "c"]
        assert other.requests() == []


def test_only_what_is_new_is_read_again(history: History) -> None:
    session = history.create()
    reader = history.session(session.id)
    session.append(user("a"))
    [first] = reader.entries()
    session.append(user("b"))
    session.edit([Drop(0)], "why")
    again = reader.entries()
    assert again[0] is first
    assert [entry.seq for entry in again] == [0, 1, 2]
    again.clear()
    assert len(reader.entries()) == 3


def test_edits_are_undone_and_undos_too(history: History) -> None:
    session = history.create()
    session.append(user("a"))
    session.append(user("b"))
    first, second = session.edit([Drop(0)], "one"), session.edit([Drop(1)], "two")
    undo = session.undo()
    assert (undo.seq, undo.edits, undo.reason) == (4, (), "undo of the edits 3")

    def undone(until: int | None = None) -> list[bool]:
        return [entry.undone for entry in session.entries(until) if isinstance(entry, Edited)]

    assert undone() == [False, True, False]
    assert undone(until=4) == [False, False]
    assert session.undo(first.seq).seq == 5
    with pytest.raises(HistoryError, match="undone already"):
        session.undo(second.seq)
    with pytest.raises(HistoryError, match="no edits to undo"):
        session.undo()
    with pytest.raises(HistoryError, match=r"entry 0 .* undo one of \[2, 3, 4, 5\]"):
        session.undo(0)
    session.undo(undo.seq)
    assert undone() == [True, False, True, False, False]
    assert history.session(session.id).entries() == session.entries()
    assert session.log()[-1] != session.entries()[-1]


def test_branches_share_what_was_before(place: str) -> None:
    with History.open(place) as history:
        root = history.create("root", model="m")
        for text in "abcd":
            root.append(user(text))
        branch = root.fork(2)
        assert (branch.info.parent, branch.info.fork, branch.info.title) == (root.id, 2, "root")
        branch.append(user("C"))
        branch.append(user("D"))
        root.append(user("e"))
        twig, low, all_of_it = branch.fork(3), branch.fork(1), branch.fork()
        twig.append(user("T"))
        low.append(user("L"))
        for session, expected in ((root, "abcde"), (branch, "abCD"), (twig, "abCT"), (low, "aL"), (all_of_it, "abCD")):
            assert texts(session) == list(expected)
            assert texts(history.session(session.id)) == list(expected)
        with pytest.raises(HistoryError, match=r"cannot be forked at 5: .* 0 to 4"):
            branch.fork(5)


def test_a_branch_undoes_for_itself(history: History) -> None:
    root = history.create()
    root.append(user("a"))
    edited = root.edit([Drop(0)], "why")
    branch = root.fork()
    branch.undo(edited.seq)
    assert isinstance(root.entries()[1], Edited)
    assert not root.entries()[1].undone  # type: ignore[union-attr]
    assert branch.entries()[1].undone  # type: ignore[union-attr]


def test_requests_keep_their_numbers_whatever_others_do(history: History) -> None:
    root = history.create()
    root.record(a_line("title", "title"))
    for n in range(3):
        root.append(user(str(n)), line=a_line(f"r{n}"))
    branch = root.fork(2)
    early = root.fork(0)
    root.record(a_line("late"))
    branch.append(user("x"), line=a_line("b0"))
    root.append(user("y"), line=a_line("r3"))

    def names(session: Session) -> list[tuple[int, str]]:
        return [(request.number, request.line.request_id) for request in history.session(session.id).requests()]

    assert names(root) == list(enumerate(["title", "r0", "r1", "r2", "late", "r3"], start=1))
    assert names(branch) == list(enumerate(["title", "r0", "r1", "b0"], start=1))
    assert names(early) == []
    assert [line.request_id for line in branch.lines()] == ["b0"]
    assert branch.request(4).session == branch.id
    with pytest.raises(HistoryError, match=r"no request 5 .* 1 to 4"):
        branch.request(5)
    with pytest.raises(HistoryError, match="no request was made"):
        early.request(1)


def test_sessions_are_found_by_the_beginning_of_their_id(place: str) -> None:
    with History.open(place) as history:
        for name in ("abc1", "abc2", "abc"):
            history.add(Whole(name, [], id=name))
        assert history.session("abc").info.title == "abc"
        assert history.session("abc1").id == "abc1"
        with pytest.raises(HistoryError, match="may be any of abc, abc1, abc2"):
            history.session("ab")
        for name in ("x", "", "%", "a_c"):
            with pytest.raises(HistoryError, match="has no session"):
                history.session(name)


def test_sessions_used_latest_come_first(history: History) -> None:
    made = [history.create(title) for title in "abc"]
    time.sleep(0.01)
    made[1].append(user("x"))
    made[1].rename("B")
    assert [info.title for info in history.sessions()] == ["B", "c", "a"]
    assert [(info.id, info.entries) for info in history.sessions(limit=1)] == [(made[1].id, 1)]


def test_a_conversation_from_elsewhere_is_taken_in_whole(place: str) -> None:
    with History.open(place) as history:
        log = [Said(0, user("a")), Edited(1, (Drop(0),), "why"), Said(4, user("b"))]
        whole = Whole("t", log, [Made(1, a_line("r"))], id="wished", created=5.0)
        session, twin = history.add(whole), history.add(whole)
        assert session.id == "wished" != twin.id
        with pytest.warns(UserWarning, match="entries 2 to 3 are lost"):
            assert session.entries() == log
        assert [line.session for line in (*session.lines(), *twin.lines())] == [session.id, twin.id]
        assert (session.info.created, session.append(user("c")).seq) == (5.0, 5)


def test_processes_make_and_fill_one_history(place: str) -> None:
    code = (
        "import sys; from longturn.conversation.history import History, Whole\n"
        "from longturn.conversation.parts import *; from longturn.errors import SessionChanged\n"
        "history = History.open(sys.argv[1]); session = history.create(sys.argv[2])\n"
        "for n in range(10): session.append(Message(str(n), 'user', (Text(str(n)),)))\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, place, name]) for name in "abc"]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    with History.open(place) as history:
        for info in history.sessions():
            assert texts(history.session(info.id)) == [str(n) for n in range(10)]
        assert len(history.sessions()) == 3


def test_a_long_session_opens_quickly(history: History) -> None:
    line = "a line of output, as tools give it\n"
    parts = (
        Text("short"),
        Reasoning("some words " * 20),
        ToolCall("c", "read", '{"path": "a"}'),
        ToolResult("c", line * 50),
    )
    roles = ("user", "assistant", "assistant", "tool")
    log = [Said(n, Message(str(n), roles[n % 4], (parts[n % 4],))) for n in range(10_000)]  # type: ignore[arg-type]
    session = history.add(Whole("long", log))

    def opened() -> None:
        with History.open(history.name.removeprefix("sqlite:///")) as again:
            assert len(again.session(session.id).entries()) == 10_000

    assert fastest(opened) < 0.2
