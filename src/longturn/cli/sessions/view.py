"""`longturn sessions view`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, SessionArgument, opened


def view(
    session: SessionArgument,
    request: Annotated[
        int | None, typer.Option(min=1, help="What this request sent, counted from 1.", show_default="the next one")
    ] = None,
    history: HistoryOption = None,
) -> None:
    """Print what a request sends, byte for byte: a line of JSON for the tools, and one for each message."""
    from longturn.conversation.view.fold import fold
    from longturn.conversation.view.render import render
    from longturn.conversation.view.sent import sent

    with opened(history) as kept:
        found = kept.session(session)
        data = render(fold(found.entries())).data if request is None else sent(found, request)
    sys.stdout.buffer.write(data)
