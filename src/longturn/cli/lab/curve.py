"""`longturn lab curve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

IN_JSON = 1000
IN_TABLE = 16


def curve(
    trace: Annotated[Path, typer.Argument(help="A trace in any format that `longturn lab trace` reads.")],
    points: Annotated[
        int | None,
        typer.Option(
            min=2, help="Capacities to show at most.", show_default=f"{IN_JSON:,} in JSON, {IN_TABLE} in the table"
        ),
    ] = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Cache answers too, as far as the trace tells them.")
    ] = False,
    sample: Annotated[
        float | None, typer.Option(help="Follow only this share of the blocks, such as 0.01, to save memory.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print [capacity in tokens, hit ratio] pairs instead of a table.")
    ] = False,
) -> None:
    """Show how LRU's hits grow with the size of the cache."""
    import msgspec
    from rich import box
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    from longturn.cli.lab.reading import print_head, print_premises, read_reuse
    from longturn.lab.bounds import infinite, lru_curve

    reuse, premises = read_reuse(trace, format, skip_bad, answers, sample)
    found = lru_curve(reuse)
    if json:
        pairs = [(capacity * reuse.unit, ratio) for capacity, ratio in found.points(points or IN_JSON)]
        typer.echo(msgspec.json.encode(pairs).decode())
        return
    console = Console()
    print_head(console, trace, reuse)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("CAPACITY, TOKENS", "OF ALL BLOCKS", "LRU HITS"):
        table.add_column(heading, justify="right")
    table.add_column()
    for capacity, ratio in found.points(points or IN_TABLE):
        share = f"{capacity / reuse.unique:.2%}"
        table.add_row(f"{capacity * reuse.unit:,}", share, f"{ratio:.3f}", Bar(1, 0, ratio, width=40))
    console.print(table)
    console.print(
        f"An infinite cache hits {infinite(reuse):.3f}; more room than the last brings nothing.", highlight=False
    )
    print_premises(console, premises)
