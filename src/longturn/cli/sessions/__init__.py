"""`longturn sessions ...`: one file per command. What is heavy is imported when a command runs."""

from __future__ import annotations

import typer

from longturn.cli.sessions.export import export as export_command
from longturn.cli.sessions.fork import fork as fork_command
from longturn.cli.sessions.import_ import import_ as import_command
from longturn.cli.sessions.list import list_ as list_command
from longturn.cli.sessions.show import show as show_command
from longturn.cli.sessions.undo import undo as undo_command
from longturn.cli.sessions.view import view as view_command

sessions = typer.Typer(
    name="sessions", help="What was said, kept for ever, and what was sent of it.", no_args_is_help=True
)
sessions.command("list")(list_command)
sessions.command("show")(show_command)
sessions.command("view")(view_command)
sessions.command("fork")(fork_command)
sessions.command("undo")(undo_command)
sessions.command("export")(export_command)
sessions.command("import")(import_command)
