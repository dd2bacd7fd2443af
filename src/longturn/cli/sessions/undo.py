"""`longturn sessions undo`."""

from __future__ import annotations

from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, SessionArgument, opened


def undo(
    session: SessionArgument,
    entry: Annotated[
        int | None, typer.Argument(min=0, help="Number of the edits, or of an undo.", show_default="the latest edits")
    ] = None,
    history: HistoryOption = None,
) -> None:
    """Take back edits, so that all is sent again as it was said. An undo can be undone."""
    from longturn.conversation.view.fold import fold

    with opened(history) as kept:
        undone = kept.session(session).undo(entry, check=fold)
    typer.echo(f"entry {undone.seq}: {undone.reason}")
