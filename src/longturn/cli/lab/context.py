"""`longturn lab context`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
        table = Table("HELD OUT", "INPUT", "REPLAYED", "OFF", "CACHED", "REPLAYED", "OFF", "")
        table.title, table.box = "What was recorded, replayed: sessions held out of the fit", box.SIMPLE_HEAD
        for check in found.checks:
            table.add_row(
                str(check.sessions),
                _short(check.reported_input),
                _short(check.replayed_input),
                f"{check.input_error:+.1%}",
                _short(check.reported_cached),
                _short(check.replayed_cached),
                f"{check.cached_error:+.1%}",
                "good" if check.good else "[red]too far off to be believed[/]",
            )
        console.print(table)
        worst = max(found.checks, key=lambda check: abs(check.worst_error))
        console.print(
            f"- furthest off: input of session {worst.worst}, {worst.worst_error:+.1%}", highlight=False, markup=False
        )
    costs = _table("What it costs", "MONEY", "LOGICAL", "CACHED", "COMPUTED", "OUTPUT", "SUMMARIES")
    effects = _table("What it does", "OVER WINDOW", "EPOCHS", "EDITS", "REGRET", "WITHHELD", "BLIND EDITS")
    for one in found.outcomes:
        use = one.use
        costs.add_row(
            escape(one.policy),
            "-" if one.money is None else f"${one.money:,.2f}",
            *map(_short, (use.logical, use.cached_total, use.computed, use.output)),
            f"{one.aside_calls:,}" + ("" if not one.aside_money else f" (${one.aside_money:,.2f})"),
        )
        figures = (one.over, one.epochs, one.edits + one.born, one.regret, one.withheld, one.blind_edits)
        effects.add_row(escape(one.policy), *(f"{figure:,}" for figure in figures))
    console.print(costs)
    console.print(effects)
    for verdict in found.verdicts():
        console.print(f"- {verdict}", highlight=False, markup=False)
    print_premises(console, list(found.premises))


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("POLICY", title=title, box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _short(tokens: int) -> str:
    return f"{tokens / 1e6:,.2f}M" if tokens >= 100_000 else f"{tokens:,}"
