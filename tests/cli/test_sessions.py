"""`longturn sessions ...`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.cli.sessions.list import shortened
from longturn.conversation.edits import Compact, Edit, Slide
from longturn.conversation.history import History, Sent, Session
from longturn.conversation.item import Item
from longturn.conversation.parts import Message, Text, ToolCall, ToolResult, Tools, Unknown
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.errors import ConfigError
from longturn.ledger import RequestLine, TokenUse


class OnSummary(Edit, tag="on-summary-for-test", frozen=True):
    """Changes nothing, but needs a summary."""

    def apply(self, items: Sequence[Item]) -> list[Item]:
        if all(item.kind != "summary" for item in items):
            raise ConfigError("there is no summary")
        return list(items)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGTURN_HISTORY", str(tmp_path / "history.db"))
    return tmp_path / "history.db"


@pytest.fixture
def session(place: Path) -> Session:
    """A question with a tool and an odd part, an answer that was counted, and an edit."""
    history = History.open(place)
    session = history.create("[bold] title", model="big", policy="none")
    tools = Tools(({"type": "function", "function": {"name": "read"}},))
    session.append(Message("m0", "system", (Text("You help."), tools)))
    session.append(Message("m1", "user", (Text("look [red]here"), Unknown({"kind": "hologram"}))))
    session.append(Message("m2", "assistant", (ToolCall("c", "read", '{"path": "a"}'),)))
    session.append(Message("m3", "tool", (ToolResult("c", "".join(f"row {n}\n" for n in range(100)), "a"),)))
    use = TokenUse(logical=1500, cached={"provider": 1000}, computed=500, output=7)
    entries = session.entries()
    sent = Sent.of(len(entries), render(fold(entries)).data)
    line = RequestLine("r", session.id, "big", 1.0, use)
    session.append(Message("m4", "assistant", (Text("seen"),)), line=line, sent=sent)
    session.edit([Slide(4)], "too long")
    return session


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "150"}).invoke(app, ["sessions", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_list(session: Session) -> None:
    branch = session.fork(2)
    shown = run("list")
    assert session.id[:8] in shown
    assert "[bold] title" in shown
    assert f"{session.id[:8]} at 2" in shown
    found = json.loads(run("list", "--json"))
    assert {info["id"]: info["entries"] for info in found} == {branch.id: 2, session.id: 6}
    assert "1 more: --limit shows them" in run("list", "--limit", 1)


def test_ids_are_as_short_as_can_be() -> None:
    ids = ["ses_0123456789ab", "ses_0123456789cd", "ses_01zzzzzzzzzz", "0a1b2c3d4e5f", "ses"]
    assert shortened(ids) == {
        "ses_0123456789ab": "ses_0123456789a",
        "ses_0123456789cd": "ses_0123456789c",
        "ses_01zzzzzzzzzz": "ses_01zz",
        "0a1b2c3d4e5f": "0a1b2c3d",
        "ses": "ses",
    }


def test_show(session: Session) -> None:
    shown = run("show", session.id[:8])
    for told in (
        "[bold] title",
        "model big, policy none",
        "spent in 1 requests: 1,500 tokens = 1,000 cached + 500 computed; 7 output",
        "[tools] read",
        "look [red]here",
        '[unknown part] {"kind":"hologram"}',
        '[call] read{"path": "a"}',
        "[result of a] row 0\n",
        "[88 more lines: --full shows them]",
        "5  edited: slide (too long)",
    ):
        assert told in shown
    assert "row 99" not in shown
    assert "row 99" in run("show", session.id, "--full")
    assert "look" not in run("show", session.id, "--last", 2)


def test_view_prints_the_very_bytes(session: Session) -> None:
    entries = session.entries()
    assert run("view", session.id, "--request", 1) == render(fold(entries[:4])).data.decode()
    assert run("view", session.id) == render(fold(entries)).data.decode()
    assert "no request 2" in run("view", session.id, "--request", 2, code=1)


def test_fork_and_undo(session: Session) -> None:
    before = run("view", session.id)
    branch = run("fork", session.id).strip()
    assert run("undo", branch) == "entry 6: undo of the edits 5\n"
    assert len(run("view", branch)) > len(before) == len(run("view", session.id))
    assert "undone since" in run("show", branch)
    run("undo", branch, 6)
    assert run("view", branch) == before
    assert "leaves behind, 0 to 6" in run("fork", session.id, "--at", 9, code=1)
    early = run("fork", session.id, "--at", 2).strip()
    assert "look" in run("view", early)
    assert "row" not in run("view", early)
    assert "no edits to undo" in run("undo", early, code=1)


def test_an_undo_that_later_edits_build_on_is_refused(session: Session) -> None:
    compacted = session.edit([Compact(1, 4, "in short", 3)], "full")
    session.edit([OnSummary()], "more")
    before = session.log()
    assert "there is no summary" in run("undo", session.id, compacted.seq, code=1)
    assert session.log() == before
    run("undo", session.id)
    run("undo", session.id, compacted.seq)


def test_there_and_back(session: Session, place: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    run("export", session.id, "--out", file)
    assert run("export", session.id) == file.read_text()
    other = tmp_path / "other" / "history.db"
    assert run("import", file, "--history", other) == f"{session.id}  6 entries  [bold] title\n"
    assert run("view", session.id, "--history", other) == run("view", session.id)
    assert run("view", session.id, "--request", 1, "--history", other) == run("view", session.id, "--request", 1)
    assert "in a folder that is there" in run("export", session.id, "--out", tmp_path / "no" / "file", code=1)


def test_import_names_the_bad_line_and_takes_in_nothing(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    good = {"type": "user", "uuid": "1", "sessionId": "s", "timestamp": "2026-01-01T10:00:00Z"}
    file.write_text(json.dumps(good | {"message": {"role": "user", "content": "hello"}}) + "\nnonsense\n")
    assert "line 2" in run("import", file, code=1)
    assert json.loads(run("list", "--json")) == []
    assert run("import", file, "--skip-bad", "--format", "claude-code") == "s  1 entries  hello\n"


def test_damage_is_told_and_the_rest_is_shown(session: Session, place: Path) -> None:
    with sqlite3.connect(place) as raw:
        raw.execute("UPDATE longturn_entries SET body = 'x' WHERE seq = 1")
    shown = run("show", session.id)
    assert "warning: session" in shown
    assert "row 2, entry 1, is left out" in shown
    assert "seen" in shown


def test_unknown_sessions_are_one_line(place: Path) -> None:
    for command in ("show", "view", "fork", "undo", "export"):
        assert "`longturn sessions list` shows those there are" in run(command, "nothing", code=1)
