"""The charts of a comparison, as plotly figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from plotly.graph_objects import Figure

from longturn.lab.compare.engines import BY_POLICY

if TYPE_CHECKING:
    from longturn.lab.compare import Comparison
    from longturn.lab.compare.job import Outcome

# One colour per policy in every chart; engines first (Okabe and Ito's palette, which the colour-blind can read).
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
_MORE = ("#8C564B", "#BCBD22", "#9467BD", "#17BECF", "#AEC7E8", "#FFBB78", "#98DF8A")
COLOURS = dict(zip(BY_POLICY, _PALETTE, strict=True))
TIERS = {"device": "#0072B2", "host": "#56B4E9", "disk": "#009E73", "computed": "#D55E00"}


def title(policy: str) -> str:
    """What people call it."""
    return BY_POLICY[policy].title if policy in BY_POLICY else policy


def hit_curves(found: Comparison, question: str) -> Figure:
    """Share of tokens cached against device size, with the bounds where host memory plays no part."""
    figure = _figure("tokens on the device", "share of prompt tokens cached")
    if question == "device":
        figure.add_scatter(
            x=[size for size, _ in found.curve],
            y=[ratio for _, ratio in found.curve],
            name="LRU, every size",
            line={"color": "#999999", "dash": "dot"},
        )
        for bound, dash in (("optimum", "dash"), ("infinite", "dashdot")):
            figure.add_scatter(
                x=found.sizes,
                y=[found.bounds[size][bound] for size in found.sizes],
                name=f"bound: {bound}",
                line={"color": "#333333", "dash": dash},
            )
    for policy, outcomes in _by_policy(found.of(question)):
        figure.add_scatter(
            x=[one.job.device_tokens for one in outcomes],
            y=[one.cached_share for one in outcomes],
            name=title(policy),
            mode="lines+markers",
            line={"color": _colour(policy)},
        )
    figure.update_xaxes(type="log", range=[np.log10(found.sizes[0] / 4), np.log10(found.sizes[-1] * 2)])
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    return figure


def sources(found: Comparison) -> Figure:
    """Where the prompt tokens came from, at the main size with host memory."""
    outcomes = [one for one in found.of("host") if one.job.device_tokens == found.main]
    outcomes.sort(key=lambda one: one.cached_share)
    figure = _figure("share of prompt tokens", "")
    for tier, colour in TIERS.items():
        values = [
            one.totals["computed"] if tier == "computed" else one.totals["by_tier"].get(tier, 0) for one in outcomes
        ]
        if any(values):
            figure.add_bar(
                y=[title(one.job.policy) for one in outcomes],
                x=[value / max(one.totals["logical"], 1) for value, one in zip(values, outcomes, strict=True)],
                name=tier,
                orientation="h",
                marker={"color": colour},
            )
    figure.update_layout(barmode="stack", height=120 + 26 * len(outcomes))
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    return figure


def first_tokens(found: Comparison) -> Figure:
    """The distribution of the time to the first token at the highest concurrency, else of requests alone."""
    timed = found.of("concurrency")
    if timed:
        most = max(one.job.label for one in timed)
        outcomes = [one for one in timed if one.job.label == most]
    else:
        outcomes = [one for one in found.of("host") if one.job.device_tokens == found.main]
    figure = _figure("seconds to the first token, modelled", "share of requests")
    for policy, [outcome, *_] in _by_policy(outcomes):
        times = np.quantile(outcome.ttft, np.linspace(0, 1, 201)) if len(outcome.ttft) else np.empty(0)
        figure.add_scatter(
            x=times.tolist(), y=np.linspace(0, 1, 201).tolist(), name=title(policy), line={"color": _colour(policy)}
        )
    figure.update_xaxes(type="log")
    figure.update_yaxes(tickformat=".0%")
    return figure


def sensitivity(found: Comparison, question: str, axis: str) -> Figure:
    """The median and the 95th percentile of the time to the first token along one axis."""
    figure = _figure(axis, "seconds to the first token, modelled")
    for policy, outcomes in _by_policy(found.of(question)):
        for q, dash in ((50, "solid"), (95, "dot")):
            figure.add_scatter(
                x=[str(one.job.label) for one in outcomes],
                y=[float(np.quantile(one.ttft, q / 100)) if len(one.ttft) else None for one in outcomes],
                name=title(policy) if q == 50 else f"{title(policy)}, 95%",
                mode="lines+markers",
                line={"color": _colour(policy), "dash": dash},
                legendgroup=policy,
                showlegend=q == 50,
            )
    figure.update_yaxes(type="log")
    return figure


def grouped(found: Comparison, question: str) -> Figure:
    """Share of tokens cached by policy, one bar per label of the question."""
    outcomes = found.of(question)
    figure = _figure("", "share of prompt tokens cached")
    for label in dict.fromkeys(one.job.label for one in outcomes):
        some = [one for one in outcomes if one.job.label == label]
        figure.add_bar(
            x=[title(one.job.policy) for one in some],
            y=[one.cached_share for one in some],
            name=str(label).replace("_", "-"),
        )
    figure.update_yaxes(tickformat=".0%")
    return figure


def _by_policy(outcomes: Iterable[Outcome]) -> list[tuple[str, list[Outcome]]]:
    grouped: dict[str, list[Outcome]] = {}
    for one in outcomes:
        grouped.setdefault(one.job.policy, []).append(one)
    return list(grouped.items())


def _colour(policy: str) -> str:
    return COLOURS.get(policy) or _MORE[sum(policy.encode()) % len(_MORE)]


def _figure(x: str, y: str) -> Any:
    figure = Figure()
    figure.update_layout(
        template="plotly_white",
        height=440,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis_title=x,
        yaxis_title=y,
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"font": {"size": 12}},
    )
    return figure
