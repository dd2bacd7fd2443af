from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conversation.history.postgres import new_database, postgres_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a history may be: an empty place, of both kinds in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    return new_database(request.getfixturevalue("server"))
