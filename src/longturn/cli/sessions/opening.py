"""The history that a command works on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longturn.conversation.history import History

HistoryOption = Annotated[
    str | None,
    typer.Option(
        envvar="LONGTURN_HISTORY",
        help="File or postgresql:// URL of the history.",
        show_default="in your data folder",
    ),
]
SessionArgument = Annotated[str, typer.Argument(help="Its id, or the beginning of it.", show_default=False)]


@contextmanager
def opened(place: str | None) -> Iterator[History]:
    """The history; what is damaged in it is told in one yellow line each."""
    from longturn.conversation.history import History

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _show_warning
        with History.open(place) as history:
            yield history


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.secho(f"warning: {message}", fg="yellow", err=True)
