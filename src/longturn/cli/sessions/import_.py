"""`longturn sessions import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, opened


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Exports of longturn or opencode, or Claude Code logs, plain or gzip.", show_default=False),
    ],
    format: Annotated[
        str | None, typer.Option(help="longturn, opencode or claude-code.", show_default="by the content")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    history: HistoryOption = None,
) -> None:
    """Take in the sessions of files, all or none of each, and print their ids."""
    from longturn.conversation.artifacts.place import artifacts_of
    from longturn.conversation.importing.formats import read_sessions

    with opened(history) as kept:
        keep = artifacts_of(kept).put
        for path in files:
            for session in kept.add_all(read_sessions(path, keep, format=format, skip_bad=skip_bad)):
                typer.echo(f"{session.id}  {session.info.entries:,} entries  {session.info.title}")
