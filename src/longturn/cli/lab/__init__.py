"""`longturn lab ...`: one file per command. What is heavy is imported when a command runs."""

from __future__ import annotations

import typer

lab = typer.Typer(name="lab", help="Compare engines' cache policies on real traffic.", no_args_is_help=True)
