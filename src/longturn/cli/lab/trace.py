"""`longturn lab trace`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from longturn.lab.trace.describe import Description, Spread


def trace(
    file: Annotated[Path, typer.Argument(help="A trace, plain or gzip.")],
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    span: Annotated[
        float, typer.Option(min=0, help="Hours over which sessions without a common clock begin, at random.")
    ] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of these random starts.")] = 0,
    shared_heads: Annotated[
        bool,
        typer.Option(
            "--shared-heads",
            help="Take system prompts and tools for shared between sessions where the file tells none.",
        ),
    ] = False,
    sample: Annotated[
        float | None, typer.Option(help="Follow only this share of the blocks, such as 0.01, to save memory.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say what a trace holds: its sessions, lengths, sharing and reuse, and what a cache can hit at most."""
    import msgspec

    from longturn.cli.lab.progress import counting
    from longturn.lab.trace import open_trace
    from longturn.lab.trace.describe import describe

    opened = open_trace(file, format=format, skip_bad=skip_bad, span=span * 3600, seed=seed, shared_heads=shared_heads)
    with counting("reading") as progress:
        found = describe(opened, rate=sample, progress=progress)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _show(found)


def _show(found: Description) -> None:
    from rich.console import Console

    console = Console()
    console.print(
        f"[bold]{found.name}[/]: {found.requests:,} requests in {found.sessions:,} sessions"
        + (f", over {_duration(found.duration)}" if found.duration else ""),
        highlight=False,
    )
    console.print(_spreads(found))
    console.print(_caching(found))
    if found.sharing and found.sharing.largest:
        console.print(_prefixes(found))
    for note in found.notes:
        console.print(f"- {note}", style="dim", highlight=False)


def _spreads(found: Description) -> Table:
    """How lengths and times are spread."""
    from rich import box
    from rich.table import Table

    table = Table("", box=box.SIMPLE_HEAD)
    for heading in ("MEAN", "P10", "P50", "P90", "P99", "MOST"):
        table.add_column(heading, justify="right")
    spreads: list[tuple[str, Spread | None, bool]] = [
        ("requests per session", found.turns, False),
        ("prompt, tokens", found.prompt, False),
        ("answer, tokens", found.output, False),
        ("between requests of a session", found.gaps, True),
        ("think time", found.think, True),
    ]
    for name, spread, is_time in spreads:
        if spread is not None:
            quantiles = [spread.quantiles[name] for name in ("p10", "p50", "p90", "p99")]
            numbers = (spread.mean, *quantiles, spread.most)
            table.add_row(name, *(_duration(number) if is_time else f"{number:,.0f}" for number in numbers))
    return table


def _caching(found: Description) -> Table:
    """What there is to gain from a cache."""
    from rich import box
    from rich.table import Table

    unit = found.unit
    table = Table(show_header=False, box=box.SIMPLE_HEAD)
    in_blocks = f" in blocks of {unit:,}" if unit > 1 else ""
    table.add_row("prompt tokens", f"{found.accesses * unit:,}{in_blocks}, {found.unique * unit:,} different ones")
    table.add_row("an infinite cache hits", f"{found.infinite:.3f} of the blocks")
    if found.reuse:
        table.add_row(
            "LRU needs for a share of these hits",
            ", ".join(f"{share[1:]}%: {_tokens(capacity)}" for share, capacity in found.reuse.items()),
        )
    if (begin := found.beginnings) is not None:
        table.add_row(
            "follow-ups",
            f"{begin.extend:,} extend the request before them, {begin.repeat:,} repeat it, "
            f"{begin.rewrite:,} share only its beginning, {begin.anew:,} share nothing",
        )
    if (sharing := found.sharing) is not None:
        groups = [group for group in sharing.by_sessions if group.blocks]
        table.add_row(
            "different tokens by sessions",
            ", ".join(f"{_sessions(group.sessions)}: {_tokens(group.blocks * unit)}" for group in groups),
        )
        table.add_row(
            "places where paths part",
            f"{sharing.forks_between_sessions:,} between sessions, {sharing.forks_within_sessions:,} within one",
        )
    return table


def _prefixes(found: Description) -> Table:
    """The prefixes that are shared most."""
    from rich import box
    from rich.table import Table

    assert found.sharing is not None
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("LARGEST SHARED PREFIXES, TOKENS", justify="right")
    table.add_column("SESSIONS", justify="right")
    for prefix in found.sharing.largest:
        table.add_row(f"{prefix.blocks * found.unit:,}", f"{prefix.sessions:,}")
    return table


def _sessions(least: int) -> str:
    return "1" if least == 1 else f"{least:,} or more"


def _tokens(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
