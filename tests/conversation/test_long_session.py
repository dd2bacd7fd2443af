"""A session far larger than its window, killed in the middle. The whole length runs in the stress tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longturn.conversation.history import History
from tests.conversation.long_session import WINDOW, agent, check, go_on, killed


def test_a_session_outgrows_its_window_many_times_and_survives_a_kill(tmp_path: Path):
    path = tmp_path / "history.db"
    seen = killed(path, 25)
    with History.open(path) as history:
        session = history.session(history.sessions()[0].id)
        resumed = agent(history, session)
        asyncio.run(go_on(resumed, 40))
        found = check(history, session, seen)
    assert found.requests >= 40
    assert found.tokens > 8 * WINDOW.context
    assert found.largest <= WINDOW.usable
    assert found.epochs > 3
