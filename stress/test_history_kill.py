"""Writers of one session are killed again and again, on both kinds of databases; what they acknowledged is there."""

from pathlib import Path

from tests.conversation.history.killing import kill_one_of_two
from tests.conversation.history.postgres import new_database, postgres_server


def test_killed_in_sqlite(tmp_path: Path) -> None:
    assert kill_one_of_two(str(tmp_path / "history.db"), rounds=15) > 100


def test_killed_in_postgresql() -> None:
    with postgres_server() as url:
        assert kill_one_of_two(new_database(url), rounds=15) > 100
