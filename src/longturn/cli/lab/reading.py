"""A trace file as the bounds see it, and the premises to print beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from longturn.lab.trace.reuse import Reuse

PREMISES = (
    "One request after the other; a hit is the leading run of a prompt's blocks that are cached.",
    "Answers take no room: only prompts are cached.",
)


def read_reuse(path: Path, format: str | None, skip_bad: bool, rate: float | None) -> tuple[Reuse, list[str]]:
    """The reuse in a trace file, of a sample of its blocks if a rate is given, and the premises of all that follows."""
    from longturn.cli.lab.progress import counting
    from longturn.lab.bounds import sample
    from longturn.lab.trace import open_trace
    from longturn.lab.trace.reuse import reuse

    trace = open_trace(path, format=format, skip_bad=skip_bad)
    with counting("reading") as progress:
        found = reuse(trace, progress) if rate is None else sample(trace, rate, progress)
    premises = [*PREMISES, *trace.notes]
    if rate is not None:
        premises.append(f"Estimated from {rate:.3g} of the blocks, about {round(found.unique * rate):,} of them.")
    return found, premises


def print_head(console: Console, path: Path, reuse: Reuse) -> None:
    """What was read, in one line."""
    console.print(
        f"[bold]{path.name}[/]: {len(reuse.lengths):,} requests touch {reuse.accesses:,} blocks of {reuse.unit:,} "
        f"token{'s' if reuse.unit > 1 else ''}, {reuse.unique:,} of them different",
        highlight=False,
    )


def print_premises(console: Console, premises: list[str]) -> None:
    """One line each."""
    for premise in premises:
        console.print(f"- {premise}", style="dim", highlight=False)
