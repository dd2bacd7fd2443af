"""400 requests and more than 3 million tokens of history through a window of 32k, with a process killed in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longturn.conversation.history import History
from tests.conversation.long_session import WINDOW, agent, check, go_on, killed


def test_a_long_session(tmp_path: Path):
    path = tmp_path / "history.db"
    seen = killed(path, 200)
    with History.open(path) as history:
        session = history.session(history.sessions()[0].id)
        asyncio.run(go_on(agent(history, session), 400))
        found = check(history, session, seen)
    print(found)
    assert found.requests >= 400
    assert found.tokens > 3_000_000
    assert found.largest <= WINDOW.usable
