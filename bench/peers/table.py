"""The one table, for people at a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.peers.pools import POOLS
from bench.peers.report import Row
from bench.peers.run import Results
from bench.peers.samples import Figure, Metric


def show(console: Console, found: Sequence[Row], results: Results, engines: Sequence[str], weights: int) -> None:
    """Print figures, memory and troubles. weights: bytes of the model."""
    table = Table(box=None, title="median [p95] ± spread of the repeats' medians", title_justify="left")
    table.add_column("workload")
    table.add_column("case")
    table.add_column("metric")
    for name in (*engines, "floor", "ours / best peer", "ours / floor"):
        table.add_column(name, justify="right")
    for row in found:
        cells = [cell(row.figures.get(engine), row.metric) for engine in engines]
        table.add_row(
            row.workload.name,
            row.case,
            row.metric.name,
            *cells,
            floor_cell(row),
            ratio(row.over_peer),
            ratio(row.over_floor),
        )
    console.print(table)
    _memory(console, results, weights)
    shares = [share for values in results.others.values() for share in values]
    if shares:
        console.print(
            f"others took {statistics.median(shares):.0%} of the processors (median; at most {max(shares):.0%})"
        )
    for trouble in results.troubles:
        console.print(f"trouble: {trouble}", style="red", markup=False)
    if results.cut:
        console.print(results.cut, style="red")


def amount(value: float, metric: Metric) -> str:
    """With its unit, in few digits."""
    if metric.unit == "s":
        return (
            f"{value * 1e3:,.1f} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms" if value < 10 else f"{value:,.1f} s"
        )
    if metric.unit in ("", "of 1"):
        return f"{value:.1%}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(one: Figure | None, metric: Metric) -> str:
    """Median, p95 of times, spread."""
    if one is None:
        return "-"
    spread = "" if one.spread is None else f" ±{one.spread / 2:.0%}"
    tail = f" [{amount(one.p95, metric)}]" if metric.lower and one.values > 1 else ""
    return f"{amount(one.median, metric)}{tail}{spread}"


def floor_cell(row: Row) -> str:
    """What the machine allows."""
    return "" if row.floor is None else amount(row.floor, row.metric)


def ratio(value: float | None) -> str:
    """Two digits, nothing of None."""
    return "" if value is None else f"{value:.2f}"


def _memory(console: Console, results: Results, weights: int) -> None:
    table = Table("pools", "engine", "start, s", "peak memory, MB", "over weights and pools", box=None)
    for (name, engine), peak in results.memory.items():
        pools = POOLS[name]
        configured = weights + pools.all_bytes
        started = f"{results.starts[name, engine]:.1f}"
        table.add_row(
            name, engine, started, f"{peak / 1e6:,.0f}", f"{peak / configured:.2f} of {configured / 1e6:,.0f}"
        )
    console.print(table)
