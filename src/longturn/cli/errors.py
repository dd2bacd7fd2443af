"""How a command ends when something is wrong: one line for a person, a traceback only on request."""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from longturn.errors import LongturnError

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C has ended."""


def show_error(message: str) -> None:
    """One red line on stderr."""
    typer.secho(f"error: {message}", fg="red", err=True)


class Commands(TyperGroup):
    """All commands. An error of ours is shown as one line, with exit code 1; LONGTURN_DEBUG=1 shows where it arose."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names."""
        try:
            return super().invoke(ctx)
        except LongturnError as error:
            if os.environ.get("LONGTURN_DEBUG"):
                raise
            show_error(str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
