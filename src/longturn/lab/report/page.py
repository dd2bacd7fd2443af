"""The page: what was asked, the answer, the charts, the tables, the premises."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from longturn.errors import ConfigError
from longturn.lab.compare.ranking import SAME_SHARE
from longturn.lab.report import charts, tables

if TYPE_CHECKING:
    from longturn.lab.compare import Comparison
    from longturn.lab.compare.ranking import Ranking

# Nothing is loaded from anywhere, whatever the charts' library would like.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 1080px; margin: 2rem auto;
       padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.4rem }
.facts, .note, li { color: #555 } .verdict { font-size: 1.1rem; border-left: 4px solid #0072B2; padding: .4rem 1rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .88rem; margin: .6rem 0 }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: right; vertical-align: top }
th:first-child, td:first-child, td:last-child { text-align: left } th { color: #555; font-weight: 600 }
details { margin: .4rem 0 } summary { cursor: pointer; color: #0072B2 }
"""


def write_report(found: Comparison, path: Path) -> None:
    """Write the page to `path`, whole or not at all. Raises ConfigError when it cannot be written."""
    page = "".join(_page(found))
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".html")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(page)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {path}: give a file in a folder that is there ({error})"
        ) from None


def _page(found: Comparison) -> Iterator[str]:
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>Cache policies on {escape(found.trace)}</title>"
    yield f'<meta http-equiv=Content-Security-Policy content="{POLICY}">'
    yield '<meta name=viewport content="width=device-width">'
    yield f"<style>{STYLE}</style><script>{get_plotlyjs()}</script>"
    yield f"<h1>Cache policies on {escape(found.trace)}</h1><p class=facts>{found.requests:,} requests with "
    yield f"{found.logical:,} prompt tokens, {found.different:,} of them different. "
    yield f"Times: {escape(found.cost.provenance)}.</p>"
    if found.ranking is not None:
        yield f"<p class=verdict>{escape(found.ranking.verdict)}</p>"
    yield from _sections(found)
    yield "<h2>Premises</h2><ul>" + "".join(f"<li>{escape(premise)}</li>" for premise in found.premises) + "</ul>"
    if found.failed:
        yield "<h2>Runs that failed</h2><ul>" + "".join(f"<li>{escape(one)}</li>" for one in found.failed) + "</ul>"
    yield "</html>\n"


def _sections(found: Comparison) -> Iterator[str]:
    host = f"Host memory is {found.question.host_ratio:g} times the device's, for engines that use any."
    yield _section(
        "Hit ratio against device size, device alone",
        "The bounds know whole blocks of the trace, and answers as far as it tells them. In brackets in the table: how "
        "much of the way from LRU to the optimum a policy has gone.",
        _chart(charts.hit_curves(found, "device")),
        _more("table", tables.sizes(found, "device")),
    )
    yield _section(
        "With host memory", host, _chart(charts.hit_curves(found, "host")), _more("table", tables.sizes(found, "host"))
    )
    yield _section(
        "Where tokens came from", f"{found.main:,} tokens on the device. {host}", _chart(charts.sources(found))
    )
    if found.ranking is not None:
        yield from _ranking(found, found.ranking)
    yield _section("Time to the first token", "", _chart(charts.first_tokens(found)))
    yield _section("The five resources", "", tables.resources(found))
    for question, axis in (("concurrency", "sessions at a time"), ("think", "times the recorded think time")):
        if found.of(question):
            chart = charts.sensitivity(found, question, axis)
            note = "Solid: median; dotted: 95th percentile. On a virtual clock: " + _premises(found, question)
            yield _section(f"Sensitivity to {axis}", note, _chart(chart), _more("table", tables.loads(found, question)))
    if found.of("sharing"):
        yield _section("What sharing between sessions is worth", "", _chart(charts.grouped(found, "sharing")))
    if found.of("routing"):
        note = f"{found.question.replicas} replicas, each with its share of the memory, behind four routers."
        yield _section("What stickiness is worth", note, _chart(charts.grouped(found, "routing")))


def _ranking(found: Comparison, ranking: Ranking) -> Iterator[str]:
    note = (
        "By the mean time to the first token, modelled, of requests served one at a time with "
        f"{found.main:,} tokens on the device and host memory beside it. Engines within {SAME_SHARE:.0%} of the first "
        "of those before them are level, and so are those that other sessions could put before the fastest."
    )
    if ranking.requests < found.requests:
        note += f" Over the {ranking.requests:,} of {found.requests:,} requests that none of them refused."
    if ranking.correlation is not None:
        note += f" Agreement with the published order, Kendall's tau: {ranking.correlation:+.2f}."
    yield _section("The ranking that these numbers give", note, tables.ranking_table(ranking))
    if ranking.disagreements:
        title = "Where it disagrees with the published order, and the resource that explains it"
        yield _section(title, "", tables.disagreements(ranking))


def _premises(found: Comparison, question: str) -> str:
    more = [premise for premise in found.premises_of(question) if premise not in found.premises]
    return "; ".join(more) + "."


def _section(title: str, note: str, *parts: str) -> str:
    noted = f"<p class=note>{escape(note)}</p>" if note else ""
    return f"<h2>{escape(title)}</h2>{noted}{''.join(parts)}"


def _chart(figure: Figure) -> str:
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
    return html


def _more(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
