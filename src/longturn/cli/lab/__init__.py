"""`longturn lab ...`: one file per command. What is heavy is imported when a command runs."""

from __future__ import annotations

import typer

from longturn.cli.lab.bound import bound as bound_command
from longturn.cli.lab.calibrate import calibrate as calibrate_command
from longturn.cli.lab.compare import compare as compare_command
from longturn.cli.lab.context import context as context_command
from longturn.cli.lab.curve import curve as curve_command
from longturn.cli.lab.generate import generate as generate_command
from longturn.cli.lab.live import live as live_command
from longturn.cli.lab.policies import policies as policies_command
from longturn.cli.lab.replay import replay as replay_command
from longturn.cli.lab.trace import trace as trace_command

lab = typer.Typer(name="lab", help="Compare engines' cache policies on real traffic.", no_args_is_help=True)
for command in (
    compare_command,
    policies_command,
    trace_command,
    generate_command,
    replay_command,
    curve_command,
    bound_command,
    live_command,
    calibrate_command,
    context_command,
):
    lab.command()(command)
