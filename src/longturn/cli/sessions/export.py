"""`longturn sessions export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, SessionArgument, opened
from longturn.errors import HistoryError


def export(
    session: SessionArgument,
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="standard output", dir_okay=False)
    ] = None,
    history: HistoryOption = None,
) -> None:
    """Write a session as JSON lines, for `longturn sessions import`: itself, its entries, its requests."""
    from longturn.conversation.importing.jsonl import write

    with opened(history) as kept:
        content = b"".join(write(kept.session(session)))
    if out is None:
        sys.stdout.buffer.write(content)
        return
    try:
        out.write_bytes(content)
    except OSError as error:
        raise HistoryError(
            f"{out} cannot be written ({error.strerror}): give a file in a folder that is there"
        ) from None
