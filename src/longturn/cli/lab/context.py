"""`longturn lab context`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from longturn.lab.context.compare import Comparison


def context(
    trace: Annotated[Path, typer.Argument(help="Coding-agent sessions, structure only.")],
    policies: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, split by commas, or one NAME:key=value,...; may be repeated. `recorded`: as really done.",
            show_default="all",
        ),
    ] = None,
    provider: Annotated[str, typer.Option(help="Cache rules: anthropic, openai, gemini or self.")] = "anthropic",
    model: Annotated[str | None, typer.Option(help="Priced model.", show_default="as recorded, or a usual one")] = None,
    window: Annotated[int, typer.Option(min=1, help="Tokens of the context window.")] = 200_000,
    output: Annotated[int, typer.Option(min=1, help="Tokens of it that an answer may need.")] = 32_000,
    ttl: Annotated[str, typer.Option(help="How long Anthropic's entries live: recorded, 5m or 1h.")] = "recorded",
    check: Annotated[bool, typer.Option(help="First check the replay against the recorded usage.")] = True,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare context policies on recorded agent sessions: money, tokens, edits, regret."""
    import msgspec
    from rich.console import Console

    from longturn.cli.lab.progress import stepping
    from longturn.conversation.policies.registry import CONTEXT_POLICIES
    from longturn.conversation.window import Window
    from longturn.lab.context.compare import Question, compare
    from longturn.lab.context.providers import Provider
    from longturn.lab.context.replay import RECORDED

    named = [name for given in policies or () for name in ([given] if ":" in given else given.split(","))]
    question = Question(
        policies=tuple(name.strip() for name in named) or (RECORDED, *CONTEXT_POLICIES),
        provider=Provider(provider, model),
        window=Window(window, output),
        ttl=ttl,
        check=check,
    )
    with stepping("replaying") as progress:
        found = compare(trace, question, skip_bad=skip_bad, progress=progress)
    if json:
        typer.echo(msgspec.json.encode(found.to_json()).decode())
    else:
        _show(Console(), found)


def _show(console: Console, found: Comparison) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from longturn.cli.lab.reading import print_premises

    console.print(
        f"[bold]{escape(found.trace)}[/]: {found.sessions:,} sessions, {found.calls:,} calls of a model",
        highlight=False,
    )
    if found.checks:
        table = Table(
            "HELD OUT", "INPUT: REPORTED", "REPLAYED", "OFF", "CACHED: REPORTED", "REPLAYED", "OFF", "WORST", ""
        )
        table.box = box.SIMPLE_HEAD
        for check in found.checks:
            table.add_row(
                f"{check.sessions} sessions",
                f"{check.reported_input:,}",
                f"{check.replayed_input:,}",
                f"{check.input_error:+.1%}",
                f"{check.reported_cached:,}",
                f"{check.replayed_cached:,}",
                f"{check.cached_error:+.1%}",
                f"{escape(check.worst)} {check.worst_error:+.0%}",
                "good" if check.good else "[red]too far off to be believed[/]",
            )
        console.print(table)
    table = Table("POLICY", box=box.SIMPLE_HEAD)
    for title in ("MONEY", "LOGICAL", "CACHED", "COMPUTED", "OUTPUT", "OVER", "EPOCHS", "EDITS", "SUMMARIES", "REGRET"):
        table.add_column(title, justify="right")
    table.add_column("WITHHELD", justify="right")
    table.add_column("BLIND EDITS", justify="right")
    for one in found.outcomes:
        table.add_row(
            escape(one.policy),
            "-" if one.money is None else f"${one.money:,.2f}",
            *(_millions(n) for n in (one.use.logical, one.use.cached_total, one.use.computed, one.use.output)),
            f"{one.over:,}",
            f"{one.epochs:,}",
            f"{one.edits + one.born:,}",
            f"{one.aside_calls:,}" + ("" if not one.aside_money else f" (${one.aside_money:,.2f})"),
            f"{one.regret:,}",
            f"{one.withheld:,}",
            f"{one.blind_edits:,}",
        )
    console.print(table)
    for verdict in found.verdicts():
        console.print(f"- {verdict}", highlight=False, markup=False)
    print_premises(console, list(found.premises))


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:,.2f}M" if tokens >= 100_000 else f"{tokens:,}"
