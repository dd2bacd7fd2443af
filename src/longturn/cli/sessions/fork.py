"""`longturn sessions fork`."""

from __future__ import annotations

from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, SessionArgument, opened


def fork(
    session: SessionArgument,
    at: Annotated[
        int | None,
        typer.Option(min=0, help="Number of the first entry that the branch leaves behind.", show_default="none"),
    ] = None,
    history: HistoryOption = None,
) -> None:
    """Begin a branch that shares what was said before, and print its id."""
    with opened(history) as kept:
        typer.echo(kept.session(session).fork(at).id)
