"""`longturn sessions list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from longturn.cli.sessions.opening import HistoryOption, opened

LEAST_DIGITS = 8


def list_(
    limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
    history: HistoryOption = None,
) -> None:
    """List sessions, those that were used latest first."""
    from dataclasses import asdict
    from datetime import datetime

    import msgspec
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    with opened(history) as kept:
        everything = kept.sessions()
    listed = everything[:limit]
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode([asdict(info) for info in listed])).decode())
        return
    short = shortened([info.id for info in everything])
    table = Table("SESSION", "TITLE", "MODEL", box=box.SIMPLE_HEAD)
    table.add_column("ENTRIES", justify="right")
    table.add_column("USED")
    table.add_column("BRANCH OF")
    for info in listed:
        used = datetime.fromtimestamp(info.updated).strftime("%Y-%m-%d %H:%M")
        branch = f"{short.get(info.parent, info.parent)} at {info.fork}" if info.parent else ""
        table.add_row(short[info.id], escape(info.title), escape(info.model or ""), f"{info.entries:,}", used, branch)
    console = Console()
    console.print(table)
    if len(everything) > limit:
        console.print(f"{len(everything) - limit:,} more: --limit shows them", style="dim", highlight=False)


def shortened(ids: Sequence[str]) -> dict[str, str]:
    """The beginnings of ids that tell them apart."""
    ordered = sorted(ids)
    short = {}
    for number, name in enumerate(ordered):
        neighbours = ordered[max(0, number - 1) : number] + ordered[number + 1 : number + 2]
        most = max((_common(name, other) for other in neighbours), default=0)
        short[name] = name[: max(LEAST_DIGITS, most + 1)]
    return short


def _common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
