"""`longturn mcp`."""

from __future__ import annotations

from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption
from longturn.errors import ConfigError


def mcp(
    session: Annotated[
        str | None, typer.Option(help="Session to remember, by the beginning of its id. Default: the latest.")
    ] = None,
    history: HistoryOption = None,
) -> None:
    """Offer a session's artifacts and history to other agents, as tools over MCP on standard input and output."""
    import anyio

    from longturn.conversation.artifacts.place import artifacts_of
    from longturn.conversation.artifacts.tools import Memory
    from longturn.conversation.history import History

    try:
        from longturn.conversation.artifacts.server import serve_stdio
    except ModuleNotFoundError as error:
        raise ConfigError(f"MCP needs its package ({error}): pip install 'longturn[conversation]'") from error

    opened = History.open(history)
    if session is None:
        latest = opened.sessions(limit=1)
        if not latest:
            raise ConfigError(f"{opened.name} has no session yet: have one with `longturn chat`, or give --history")
        session = latest[0].id
    anyio.run(serve_stdio, Memory(artifacts_of(opened), opened.session(session).entries))
