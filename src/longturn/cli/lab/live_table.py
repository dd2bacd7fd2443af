"""The report of `longturn lab live` for people."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

Json = dict[str, Any]

ROWS = 40
"""Requests shown; of more than these, those that failed or differ from the model come first."""


def print_report(console: Console, report: Json) -> None:
    """All of it: sums, times, counters, the model's share, requests, premises."""
    sums = report["totals"]
    console.print(
        f"[bold]{report['engine']}[/] at {report['url']}: {sums['answered']:,} of {sums['requests']:,} requests of "
        f"{report['trace']} answered in {report['seconds']:.1f} s",
        highlight=False,
    )
    for outcome, n in sums["outcomes"].items():
        if outcome != "ok":
            console.print(f"{n:,} {outcome}", style="red", highlight=False)
    console.print(_counts(report), _times(report["times"]))
    if report["metrics"]["grown"]:
        console.print(_counters(report["metrics"]["grown"]))
    if report["metrics"]["trouble"]:
        console.print(report["metrics"]["trouble"], style="yellow", highlight=False)
    modelled = report["modelled"]
    if modelled is not None:
        console.print(_beside(modelled), highlight=False)
    console.print(_requests(report["requests"], modelled is not None))
    for row in [row for row in report["requests"] if row["error"]][:ROWS]:
        console.print(f"#{row['index']} {row['outcome']}: {row['error']}", style="red", highlight=False, markup=False)
    for note in report["notes"]:
        console.print(f"- {note}", style="dim", highlight=False)
    for premise in () if modelled is None else modelled["premises"]:
        console.print(f"- modelled: {premise}", style="dim", highlight=False)


def _number(value: float | str | None) -> str:
    """`-` is what nobody told, which is not 0."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counts(report: Json) -> Table:
    sums, metrics = report["totals"], report["metrics"]
    table = Table("TOKENS", "SENT", "IN ANSWERS", "OWN COUNTERS", "DRIFT", box=box.SIMPLE_HEAD)
    for name in ("logical", "cached", "computed", "output"):
        sent = sums["sent"] if name == "logical" else ""
        counted, drift = metrics["counted"].get(name), metrics["drift"].get(name)
        table.add_row(name, _number(sent), _number(sums[name]), _number(counted), _number(drift))
    return table


def _times(times: Json) -> Table:
    table = Table("SECONDS", "P50", "P95", "MAX", box=box.SIMPLE_HEAD)
    names = {"ttft_s": "to the first token", "gap_s": "between chunks", "total_s": "to the end", "late_s": "sent late"}
    for key, name in names.items():
        if times[key]["max"] is not None:
            table.add_row(name, *(_seconds(times[key][column]) for column in ("p50", "p95", "max")))
    return table


def _counters(grown: Json) -> Table:
    table = Table("OWN COUNTER", "GREW BY", box=box.SIMPLE_HEAD)
    for name, series in grown.items():
        for labels, value in series.items():
            table.add_row(f"{name}{{{labels}}}" if labels else name, f"{value:,.0f}")
    return table


def _beside(modelled: Json) -> str:
    options = ",".join(f"{name}={value}" for name, value in modelled["options"].items())
    return (
        f"modelled by [bold]{modelled['policy']}[/] ({options}) with {modelled['device_tokens']:,} device tokens: "
        f"{modelled['exact']:,} of {modelled['compared']:,} requests exact; cached {modelled['measured']:,} measured, "
        f"{modelled['modelled']:,} modelled, drift {modelled['drift']:+,}"
    )


def _requests(rows: list[Json], beside: bool) -> Table:
    def odd(row: Json) -> bool:
        return bool(row["error"]) or (beside and row["modelled_cached_tokens"] != row["cached_tokens"])

    chosen = sorted(sorted(rows, key=lambda row: not odd(row))[:ROWS], key=lambda row: rows.index(row))
    columns = {"#": "index", "SESSION": "session", "LOGICAL": "prompt_tokens", "CACHED": "cached_tokens"}
    columns |= {"MODELLED": "modelled_cached_tokens"} if beside else {}
    columns |= {"OUTPUT": "output_tokens", "TTFT": "ttft_s", "TOTAL": "total_s"}
    caption = f"{len(rows) - len(chosen):,} more in --json" if len(chosen) < len(rows) else None
    table = Table(*columns, box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for row in chosen:
        cells = ((_seconds if name.endswith("_s") else _number)(row[name]) for name in columns.values())
        table.add_row(*cells, style="red" if row["error"] else "yellow" if odd(row) else None)
    return table
