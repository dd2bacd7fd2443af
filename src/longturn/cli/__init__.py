"""The command `longturn`. One file per command; what is heavy is imported when a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

import longturn
from longturn.cli.chat import chat as chat_command
from longturn.cli.demo import demo as demo_command
from longturn.cli.doctor import doctor as doctor_command
from longturn.cli.errors import Commands
from longturn.cli.explain import explain as explain_command
from longturn.cli.gateway import gateway as gateway_command
from longturn.cli.lab import lab as lab_commands
from longturn.cli.mcp import mcp as mcp_command
from longturn.cli.models import models as models_command
from longturn.cli.report import report as report_command
from longturn.cli.serve import serve as serve_command
from longturn.cli.sessions import sessions as sessions_commands

app = typer.Typer(
    cls=Commands,
    help="Long conversations, computed once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (
    demo_command,
    serve_command,
    chat_command,
    models_command,
    doctor_command,
    explain_command,
    gateway_command,
    report_command,
    mcp_command,
):
    app.command()(command)
app.add_typer(sessions_commands)
app.add_typer(lab_commands)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"longturn {longturn.__version__}")
        raise typer.Exit


@app.callback()
def _longturn(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    del version  # its callback has done all
