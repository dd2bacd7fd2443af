"""`longturn lab compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from longturn.lab.compare import Comparison

# Requests that all policies replay in a few minutes.
WORK = 10_000


def compare(
    trace: Annotated[Path, typer.Argument(help="A trace in any format that `longturn lab trace` reads.")],
    policy: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME:key=value,...; may be repeated.", show_default="all")
    ] = None,
    device_share: Annotated[
        list[float] | None,
        typer.Option(
            min=0, help="Device size as a share of all different tokens; may be repeated.", show_default="five"
        ),
    ] = None,
    host_ratio: Annotated[float, typer.Option(min=0, help="Host memory over device memory.")] = 2.0,
    model: Annotated[str, typer.Option(help="Model profile for modelled times.")] = "llama-3.1-8b",
    hardware: Annotated[str, typer.Option(help="Hardware profile for modelled times.")] = "h100-sxm",
    share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the sessions.", show_default="what takes a few minutes")
    ] = None,
    timed: Annotated[int, typer.Option(min=0, help="Requests on a virtual clock; 0: none.")] = 300,
    replicas: Annotated[int, typer.Option(min=0, help="Replicas behind routers; 0: none.")] = 4,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report, one page that needs no network.")] = None,
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare all policies on a trace: sizes, tiers, load, routing, and whether it matters."""
    import msgspec
    from rich.console import Console

    from longturn.cache.policies.options import split
    from longturn.cache.policies.registry import POLICIES, all_options
    from longturn.cli.lab.progress import stepping
    from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
    from longturn.errors import ConfigError
    from longturn.lab.compare import SHARES, Question, Source
    from longturn.lab.compare import compare as run

    # What is wrong is said before anything runs.
    named: dict[str, dict[str, str]] = {}
    for name, options in map(split, policy or POLICIES):
        if name in named:
            raise ConfigError(f"policy {name} is given twice: compare its options in two runs")
        all_options(name, options)
        named[name] = options
    if html is not None:
        if not html.absolute().parent.is_dir():
            raise ConfigError(f"{html} cannot be written: there is no folder {html.parent}")
        try:
            from longturn.lab.report import write_report
        except ModuleNotFoundError as error:
            raise ConfigError(f"a report needs the lab's packages ({error}): pip install 'longturn[lab]'") from None
    cost = CostModel(load_model_profile(model), load_hardware_profile(hardware))
    question = Question(named, tuple(device_share or SHARES), host_ratio, timed, replicas)
    source = Source(trace, format, skip_bad)
    source = source.at_most(WORK) if share is None else Source(trace, format, skip_bad, share)
    with stepping("comparing") as progress:
        found = run(source, question, cost, workers, progress)
    if html is not None:
        write_report(found, html)
    if json:
        typer.echo(msgspec.json.encode(found.to_json()).decode())
        return
    console = Console()
    _show(console, found)
    if html is not None:
        console.print(f"report: {html}", highlight=False, markup=False)


def _show(console: Console, found: Comparison) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from longturn.cli.lab.reading import print_premises

    console.print(
        f"[bold]{escape(found.trace)}[/]: {found.requests:,} requests, {found.logical:,} tokens, "
        f"{found.different:,} of them different",
        highlight=False,
    )
    for question, title in (("device", "Share cached, device alone"), ("host", "Share cached, with host memory")):
        table = Table("POLICY", *(f"{size:,}" for size in found.sizes), box=box.SIMPLE_HEAD, title=title)
        rows: dict[str, dict[int, float]] = {}
        for one in found.of(question):
            rows.setdefault(one.job.policy, {})[one.job.device_tokens] = one.cached_share
        for name, cells in sorted(rows.items(), key=lambda row: -row[1].get(found.main, 0.0)):
            table.add_row(name, *(f"{cells[size]:.3f}" if size in cells else "-" for size in found.sizes))
        if question == "device":
            table.add_section()
            for bound in ("infinite", "optimum", "lru"):
                table.add_row(f"bound: {bound}", *(f"{found.bounds[size][bound]:.3f}" for size in found.sizes))
        console.print(table)
    if (ranking := found.ranking) is not None:
        table = Table("RANK", "ENGINE", "TTFT, MODELLED", "BEHIND (95%)", "PUBLISHED", box=box.SIMPLE_HEAD)
        for place in ranking.places:
            table.add_row(
                str(place.rank),
                place.title,
                f"{place.ttft:.3f} s",
                f"{place.behind:+.1%} ({place.interval})",
                "-" if place.published is None else str(place.published),
            )
        console.print(table)
        agreement = "none to compare" if ranking.correlation is None else f"{ranking.correlation:+.2f}"
        console.print(f"{ranking.verdict} Agreement with the published order (Kendall's tau): {agreement}.")
        for pair in ranking.disagreements:
            console.print(f"- {pair.better} before {pair.worse}: {pair.resource}. {pair.explanation}.", highlight=False)
    for failure in found.failed:
        console.print(f"failed: {failure}", style="red", highlight=False, markup=False)
    print_premises(console, found.premises)
