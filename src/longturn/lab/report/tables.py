"""The tables of a comparison, as HTML. Everything that comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from longturn.lab.report.charts import title

if TYPE_CHECKING:
    from longturn.lab.compare import Comparison
    from longturn.lab.compare.ranking import Ranking


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column is text and whose others are figures."""
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"


def ranking_table(ranking: Ranking) -> str:
    """The engines in computed order, beside the published one."""
    return table(
        ("engine", "rank here", "published", "mean TTFT, modelled", "behind the first", "95% over sessions", "cached"),
        (
            (
                place.title,
                place.rank,
                place.published or "-",
                f"{place.ttft:.4f} s",
                f"{place.behind:.1%}",
                place.interval,
                f"{place.cached_share:.1%}",
            )
            for place in ranking.places
        ),
    )


def disagreements(ranking: Ranking) -> str:
    """Each pair whose order is the other way round than published."""
    return table(
        ("faster here", "published as better", "resource", "saved, all requests", "why"),
        (
            (one.better, one.worse, one.resource, f"{one.saved_seconds:,.2f} s", one.explanation)
            for one in ranking.disagreements
        ),
    )


def resources(found: Comparison) -> str:
    """The five resources per policy: on the virtual clock where there is one, else of requests alone."""
    timed = found.of("concurrency")
    most = max((one.job.label for one in timed), default=None)
    clocked = {one.job.policy: one for one in timed if one.job.label == most}
    rows = []
    for one in found.of("host"):
        if one.job.device_tokens != found.main:
            continue
        clock = clocked.get(one.job.policy)
        n = max(len(one.ttft), 1)
        rows.append(
            (
                title(one.job.policy),
                f"{one.device_flops / 1e12:,.1f}",
                f"{one.device_seconds:,.2f}",
                "-" if clock is None else f"{clock.device_byte_seconds / 1e9:,.1f}",
                "-" if clock is None else f"{clock.host_byte_seconds / 1e9:,.1f}",
                f"{sum(one.transfer_bytes.values()) / 1e9:,.2f}",
                f"{one.cpu_seconds / n * 1e6:,.0f}",
            )
        )
    return table(
        (
            "policy",
            "device compute, TFLOP (prefill)",
            "device compute, s (modelled)",
            "device memory, GB s (timed)",
            "host memory, GB s (timed)",
            "transfer up, GB",
            "scheduling and metadata, CPU us a request (measured here)",
        ),
        rows,
    )


def sizes(found: Comparison, question: str) -> str:
    """Share cached per policy and size; without host memory also how much of the gap to the optimum is closed."""
    by_policy: dict[str, dict[int, str]] = {}
    for one in found.of(question):
        cell = f"{one.cached_share:.3f}"
        gap = found.gap(one) if question == "device" else None
        by_policy.setdefault(title(one.job.policy), {})[one.job.device_tokens] = (
            cell if gap is None else f"{cell} ({gap:+.0%})"
        )
    rows: list[Sequence[object]] = [
        (name, *(cells.get(size, "-") for size in found.sizes)) for name, cells in by_policy.items()
    ]
    if question == "device":
        for bound in ("lru", "optimum", "infinite"):
            rows.append((f"bound: {bound}", *(f"{found.bounds[size][bound]:.3f}" for size in found.sizes)))
    return table(("policy", *(f"{size:,}" for size in found.sizes)), rows)


def loads(found: Comparison, question: str) -> str:
    """Median and 95th percentile of the time to the first token per policy along one axis."""
    return table(
        ("policy", "at", "TTFT p50, s", "TTFT p95, s", "cached"),
        (
            (
                title(one.job.policy),
                one.job.label,
                *(f"{np.quantile(one.ttft, q):.3f}" if len(one.ttft) else "-" for q in (0.5, 0.95)),
                f"{one.cached_share:.1%}",
            )
            for one in found.of(question)
        ),
    )
