"""`longturn lab bound`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bound(
    trace: Annotated[Path, typer.Argument(help="A trace in any format that `longturn lab trace` reads.")],
    device_tokens: Annotated[int, typer.Option(min=0, help="Tokens that the cache holds, in whole blocks.")],
    answers: Annotated[
        bool, typer.Option("--answers", help="Cache answers too, as far as the trace tells them.")
    ] = False,
    sample: Annotated[
        float | None, typer.Option(help="Follow only this share of the blocks, such as 0.01, to save memory.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Say what a cache of some size could hit at best, and what LRU hits."""
    import msgspec
    from rich import box
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    from longturn.cli.lab.reading import print_head, print_premises, read_reuse
    from longturn.lab.bounds import gap_closed, infinite, lru, optimum

    reuse, premises = read_reuse(trace, format, skip_bad, answers, sample)
    capacity = device_tokens // reuse.unit
    ratios = {"infinite": infinite(reuse), "optimum": optimum(reuse, capacity), "lru": lru(reuse, capacity)}
    if json:
        typer.echo(msgspec.json.encode(ratios).decode())
        return
    console = Console()
    print_head(console, trace, reuse)
    table = Table("CACHE", "BLOCKS HIT", "", box=box.SIMPLE_HEAD)
    table.add_row("infinite", f"{ratios['infinite']:.3f}", Bar(1, 0, ratios["infinite"], width=40))
    table.add_row("optimum", f"{ratios['optimum']:.3f}", Bar(1, 0, ratios["optimum"], width=40))
    table.add_row("LRU", f"{ratios['lru']:.3f}", Bar(1, 0, ratios["lru"], width=40))
    console.print(table)
    console.print(
        f"{capacity:,} blocks are {capacity / max(reuse.unique, 1):.1%} of all different ones. "
        + (
            "No policy hits more than LRU at this size."
            if gap_closed(ratios["lru"], ratios["lru"], ratios["optimum"]) is None
            else f"Between LRU and the optimum lie {ratios['optimum'] - ratios['lru']:.3f}."
        ),
        highlight=False,
    )
    print_premises(console, premises)
