"""Places where a history is, should not be, or is damaged."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from longturn.conversation.history import History, migrations
from longturn.conversation.history.database import Database, default_path
from longturn.conversation.history.migrations import versions
from longturn.conversation.history.schema import REVISION, VERSION_TABLE, metadata
from longturn.errors import HistoryError
from tests.conversation.history.postgres import new_database
from tests.conversation.history.said import a_line, user


def test_migrations_make_the_tables_that_the_code_uses(place: str) -> None:
    database = Database(place)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == REVISION
    database.close()


def test_migrations_travel_with_the_package() -> None:
    # Wheels hold packages, which are folders with an __init__.py.
    assert versions.__file__ is not None
    assert migrations.__file__ is not None
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_current_head() == REVISION


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LONGTURN_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    assert default_path() == Path("/x/longturn/history.db")
    monkeypatch.setenv("LONGTURN_DATA", str(tmp_path / "new"))
    with History.open() as history:
        history.create()
    assert (tmp_path / "new" / "history.db").exists()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_password_is_never_shown(server: str) -> None:
    with pytest.raises(HistoryError, match=r"tester:\*\*\*@") as raised:
        History.open(f"{server}/nowhere")
    assert server.split(":")[2].split("@")[0] not in str(raised.value)


@pytest.mark.parametrize(
    "place", ["/proc/no/history.db", "nosuchdb://host/history", "://", "postgresql://127.0.0.1:1/x"]
)
def test_refuses_a_place_that_cannot_be_used(place: str) -> None:
    with pytest.raises(HistoryError, match=r"cannot open the history|no URL"):
        History.open(place)


def test_a_server_may_close_idle_connections(server: str) -> None:
    place = new_database(server)
    with History.open(place) as history:
        session = history.create()
        session.append(user("a"))
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            assert connection.execute(ended, [place.rpartition("/")[2]]).fetchall()
        assert session.append(user("b")).seq == 1


def test_refuses_a_file_that_is_no_database(path: Path) -> None:
    path.write_text("dear diary, " * 100)
    with pytest.raises(HistoryError, match="not a database"):
        History.open(path)


def test_refuses_another_programs_database_and_leaves_it_alone(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE recipes (name)")
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="not a Longturn history: it holds recipes"):
        History.open(path)
    assert path.read_bytes() == before


def test_refuses_a_newer_schema(history: History, path: Path) -> None:
    history.close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(HistoryError, match=r"schema 9999, .* upgrade Longturn"):
        History.open(path)


@pytest.mark.parametrize(
    "damage",
    [
        "body = '{'",
        "body = x'ff'",
        "body = replace(body, 'two', 'TWO')",
        "body = '', checksum = '2d06800538d394c2'",
        "body = '{\"message\":{}}', checksum = '8363b335ff349fe0'",
        "kind = 'sung'",
        "checksum = ''",
    ],
)
def test_a_damaged_row_is_named_and_the_rest_loads(history: History, path: Path, damage: str) -> None:
    session = history.create()
    for text in ("one", "two", "three"):
        session.append(user(text))
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE longturn_entries SET {damage} WHERE seq = 1")
    again = history.session(session.id)
    with pytest.warns(UserWarning, match="row 2, entry 1, is left out"):
        assert [entry.seq for entry in again.entries()] == [0, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is known already is not told again
        assert again.append(user("four")).seq == 3
        assert len(again.entries()) == 3


@pytest.mark.parametrize(("lost", "told"), [("seq = 0", "0 to 0"), ("seq >= 1", "1 to 2"), ("true", "0 to 2")])
def test_lost_rows_are_told(history: History, path: Path, lost: str, told: str) -> None:
    session = history.create()
    for text in ("one", "two", "three"):
        session.append(user(text))
    with sqlite3.connect(path) as raw:
        raw.execute(f"DELETE FROM longturn_entries WHERE {lost}")
    again = history.session(session.id)
    with pytest.warns(UserWarning, match=f"entries {told} are lost"):
        again.entries()
    assert again.append(user("four")).seq == 3


@pytest.mark.parametrize("damage", ["body = '{}'", "body = replace(body, '10', '11')", "checksum = ''"])
def test_a_damaged_request_is_named_and_the_others_keep_their_numbers(
    history: History, path: Path, damage: str
) -> None:
    session = history.create()
    for name in ("r1", "r2", "r3"):
        session.append(user(name), line=a_line(name))
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE longturn_requests SET {damage} WHERE id = 2")
    with pytest.warns(UserWarning, match="request row 2 is left out"):
        assert [(request.number, request.line.request_id) for request in session.requests()] == [(1, "r1"), (3, "r3")]
