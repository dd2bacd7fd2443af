"""A trace file as the bounds see it, and the premises to print beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from longturn.lab.trace.reuse import Reuse

PREMISES = (
    "One request after the other; a hit is the leading run of a prompt's blocks that are cached.",
    "LRU evicts what was used longest ago, of one prompt the deepest block first; the optimum knows the future.",
)


def read_reuse(
    path: Path, format: str | None, skip_bad: bool, answers: bool, rate: float | None
) -> tuple[Reuse, list[str]]:
    """The reuse in a trace file, of a sample of its blocks if a rate is given, and the premises of all that follows."""
    from longturn.cli.lab.progress import counting
    from longturn.lab.bounds import sample
    from longturn.lab.trace import open_trace
    from longturn.lab.trace.reuse import reuse

    trace = open_trace(path, format=format, skip_bad=skip_bad)
    with counting("reading") as progress:
        if rate is None:
            found = reuse(trace, answers=answers, progress=progress)
        else:
            found = sample(trace, rate, answers=answers, progress=progress)
    cached = (
        "Prompts are cached, and answers as far as the trace tells them." if answers else "Only prompts are cached."
    )
    premises = [*PREMISES, cached, *trace.notes]
    if rate is not None:
        premises.append(f"Estimated from {rate:.3g} of the blocks, about {round(found.unique * rate):,} of them.")
    return found, premises


def print_head(console: Console, path: Path, reuse: Reuse) -> None:
    """What was read, in one line."""
    from rich.markup import escape

    name = escape(path.name)
    console.print(
        f"[bold]{name}[/]: {reuse.requests:,} requests ask for {reuse.accesses:,} blocks of {reuse.unit:,} "
        f"token{'s' if reuse.unit > 1 else ''}; {reuse.unique:,} different blocks are cached once or more",
        highlight=False,
    )


def print_premises(console: Console, premises: list[str]) -> None:
    """One line each."""
    for premise in premises:
        console.print(f"- {premise}", style="dim", highlight=False, markup=False, soft_wrap=True)
