"""`longturn report`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from longturn.gateway.report import Report, Sum

UNITS = {"m": 60, "h": 3600, "d": 86400}


def report(
    ledger: Annotated[str, typer.Option(help="SQLite file or database URL of the book.")] = "longturn-gateway.db",
    since: Annotated[
        str | None, typer.Option(help="Only what began in the last 30m, 12h or 7d.", show_default="everything")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Read the counters of this engine, an upstream, and compare; repeatable.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Sessions, models and keys to show, the dearest.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what requests have cost, by session, model and cause of miss, and what mending each cause would save."""
    import msgspec

    from longturn.errors import ConfigError
    from longturn.gateway import counters
    from longturn.gateway.entries import Entries
    from longturn.gateway.report import reconciled
    from longturn.gateway.report import report as made
    from longturn.ledger.book import Book

    if "://" not in ledger and not Path(ledger).is_file():
        raise ConfigError(f"there is no ledger {ledger}: give --ledger, or start `longturn gateway` first")
    url = ledger if "://" in ledger else f"sqlite:///{ledger}"
    begun = _begun(since)
    with Book(url) as book, Entries(url) as entries:
        found = made(book.lines(since=begun), entries.all(since=begun))
        for upstream in engine or ():
            before = entries.counted(upstream.rstrip("/"))
            at = before.at if before else None
            found.engines.append(
                reconciled(
                    upstream.rstrip("/"), before, counters.read(upstream), book.lines(since=at), entries.all(since=at)
                )
            )
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found.to_dict())).decode())
    else:
        _show(found, rows)


def _begun(since: str | None) -> float | None:
    if since is None:
        return None
    match = re.fullmatch(r"(\d+)([mhd])", since)
    if match is None:
        raise typer.BadParameter(f"{since!r} is no time: give minutes, hours or days, such as 30m, 12h or 7d")
    return time.time() - int(match[1]) * UNITS[match[2]]


def _show(report: Report, rows: int) -> None:
    """The report for a person."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    every = report.all
    if not every.requests:
        console.print("No requests.")
        return
    share = every.use.cached_total / every.use.logical if every.use.logical else 0.0
    console.print(
        f"{every.requests:,} requests: logical {every.use.logical:,} = cached {every.use.cached_total:,} ({share:.1%}) "
        f"+ computed {every.use.computed:,} · output {every.use.output:,} · {_usd(every.usd, _unknown(every))}"
    )
    if every.unpriced:
        console.print(f"{every.unpriced:,} of them have no known price and are not in the sums of dollars.")
    if every.without_usage:
        console.print(f"{every.without_usage:,} answers came without usage (OpenAI: ask for it in streams).")
    if others := {name: n for name, n in report.outcomes.items() if name != "complete"}:
        console.print("Not complete: " + ", ".join(f"{n:,} {name}" for name, n in others.items()))

    if report.causes:
        table = Table("cause of misses", box=box.SIMPLE_HEAD)
        for name in ("misses", "sessions", "tokens lost", "mending saves"):
            table.add_column(name, justify="right")
        for cause in report.causes:
            label = f"{cause.mechanism} (intended)" if cause.intentional else cause.mechanism
            saves = "" if cause.intentional else _usd(cause.lost_usd, cause.unpriced)
            if saves and cause.lost_usd and every.usd:
                saves += f" ({cause.lost_usd / every.usd:.1%})"
            table.add_row(label, f"{cause.misses:,}", f"{cause.sessions:,}", f"{cause.lost_tokens:,}", saves)
        console.print()
        console.print(table)
        for cause in report.causes:
            if not cause.intentional:
                console.print(Text.assemble((cause.mechanism, "bold"), f": {cause.fix}"))
    for title, parts in (("Sessions", report.sessions), ("Models", report.models), ("Keys", report.keys)):
        if parts:
            console.print()
            console.print(_sums(title, parts, rows))
    if report.drifting:
        console.print()
        console.print(
            f"{report.drifting:,} requests have another count of cached tokens than their conversations let expect:"
        )
        for entry in report.drifts[:rows]:
            console.print(
                f"  {entry.request_id}  expected {entry.expected or 0:,}, "
                f"reported {(entry.expected or 0) + (entry.drift or 0):,}"
            )
    for engine in report.engines:
        console.print()
        if engine.trouble:
            console.print(f"{engine.upstream}: {engine.trouble}.")
            continue
        console.print(f"{engine.upstream} ({engine.engine}), since the gateway was started:")
        for name, own, ours in (
            ("logical", engine.logical, engine.ledger_logical),
            ("cached", engine.cached, engine.ledger_cached),
        ):
            shown = "does not count" if own is None else f"{own:,}, difference {own - ours:+,}"
            console.print(f"  {name}: ledger {ours:,}, engine {shown}")


def _sums(title: str, parts: list[Sum], rows: int) -> Table:
    from rich import box
    from rich.table import Table

    more = f", the {rows} dearest of {len(parts):,}" if len(parts) > rows else ""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(title + more, overflow="fold")
    for name in ("requests", "logical", "cached", "output", "cost", "misses", "lost"):
        table.add_column(name, justify="right")
    for part in parts[:rows]:
        cached = part.use.cached_total / part.use.logical if part.use.logical else 0.0
        table.add_row(
            part.name or "(none)",
            f"{part.requests:,}",
            f"{part.use.logical:,}",
            f"{cached:.0%}",
            f"{part.use.output:,}",
            _usd(part.usd, _unknown(part)),
            f"{part.misses:,}",
            _usd(part.lost_usd, part.unpriced) if part.misses else "",
        )
    return table


def _unknown(part: Sum) -> int:
    """Of how many requests nobody knows what they have cost."""
    return part.unpriced + part.without_usage


def _usd(usd: float, unknown: int) -> str:
    """A sum; a question mark where it is 0 because of no request it is known."""
    if unknown and not usd:
        return "?"
    return f"${usd:,.2f}" if usd >= 1 or not usd else f"${usd:.4f}"
