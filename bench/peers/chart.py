"""A chart per workload as SVG, for a page and for the docs: bars of medians, a line up to p95, a mark at the floor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from bench.peers.report import Row
from bench.peers.table import amount

# Okabe and Ito's palette, as in the lab's charts.
COLOURS = {"longturn": "#0072B2", "llamacpp": "#D55E00", "vllm": "#009E73"}
NAMES = {"longturn": "Longturn", "llamacpp": "llama.cpp", "vllm": "vLLM"}
_LEFT, _PLOT, _RIGHT, _BAR, _GAP = 330, 380, 170, 16, 14


def html(found: Sequence[Row], note: str) -> str:
    """All charts on one HTML page, without scripts."""
    charts = [chart(list(rows), note) for _, rows in groupby(found, key=lambda row: row.workload.name)]
    style = "body{font-family:sans-serif;margin:2em auto;max-width:900px}svg{margin-bottom:2em}"
    title = "Longturn beside llama.cpp and vLLM"
    head = f"<meta charset='utf-8'><title>{title}</title><style>{style}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body><h1>{title}</h1>{''.join(charts)}</body></html>\n"


def chart(rows: Sequence[Row], note: str) -> str:
    """One workload. Every row has a scale of its own, from 0 to its largest value: compare within it."""
    parts: list[str] = []
    y = 48
    for row in rows:
        better = "less is better" if row.metric.lower else "more is better"
        parts += _text(0, y + 12, row.case, weight="bold") + _text(
            0, y + 28, f"{row.metric.name} ({better})", colour="#666"
        )
        scale = _PLOT / max(
            [one.median for one in row.figures.values()] + [one.p95 for one in row.figures.values()] + [1e-12]
        )
        top = y
        for engine, one in row.figures.items():
            tail = one.p95 * scale if row.metric.lower else 0.0
            parts += _bar(y, one.median * scale, tail, COLOURS.get(engine, "#999"))
            label = f"{NAMES.get(engine, engine)}  {amount(one.median, row.metric)}"
            parts += _text(_LEFT + max(one.median * scale, tail) + 6, y + 12, label)
            y += _BAR
        y = max(y, top + 2 * _BAR)
        if row.floor is not None and row.floor * scale <= _PLOT:
            x = _LEFT + row.floor * scale
            parts.append(
                f"<line x1='{x:.1f}' y1='{top - 3}' x2='{x:.1f}' y2='{y + 3}' stroke='#000' stroke-dasharray='3 2'/>"
            )
        y += _GAP
    width, height = _LEFT + _PLOT + _RIGHT, y + 18
    title = _text(0, 18, rows[0].workload.title, size=16, weight="bold")
    legend = "bar: median; thin line: p95; dashed: what this machine allows. "
    foot = _text(0, height - 8, legend + note, size=10, colour="#666")
    box = f"viewBox='0 0 {width} {height}' width='{width}' font-family='sans-serif'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {box}>"
    back = f"<rect width='{width}' height='{height}' fill='#fff'/>"
    return "\n".join([head, back, *title, *parts, *foot, "</svg>"]) + "\n"


def _bar(y: float, median: float, tail: float, colour: str) -> Iterable[str]:
    yield f"<rect x='{_LEFT}' y='{y + 1}' width='{max(median, 1):.1f}' height='{_BAR - 3}' fill='{colour}'/>"
    if tail > median:
        middle = y + _BAR / 2
        ends = f"x1='{_LEFT + median:.1f}' y1='{middle}' x2='{_LEFT + tail:.1f}' y2='{middle}'"
        yield f"<line {ends} stroke='{colour}' stroke-width='2'/>"


def _text(x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", colour: str = "#000") -> list[str]:
    style = f"font-size='{size}' font-weight='{weight}' fill='{colour}'"
    return [f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"]
