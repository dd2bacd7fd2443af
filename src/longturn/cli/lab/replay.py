"""`longturn lab replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    trace: Annotated[Path, typer.Argument(help="A trace in any format that `longturn lab trace` reads.")],
    policy: Annotated[str, typer.Option(help="NAME or NAME:key=value,...; see `longturn lab policies`.")] = "longturn",
    device_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the device holds.")] = 65536,
    host_tokens: Annotated[int, typer.Option(min=0, help="Tokens that host memory holds; 0: no such tier.")] = 0,
    mode: Annotated[str, typer.Option(help="hits: serially, without a clock.")] = "hits",
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every request.")] = False,
) -> None:
    """Replay a trace through one cache policy."""
    import msgspec
    from rich.console import Console

    from longturn.cache.policies.options import split
    from longturn.cli.lab.progress import counting
    from longturn.lab.replay import replay_hits
    from longturn.lab.trace import open_trace

    name, options = split(policy)
    opened = open_trace(trace, format=format, skip_bad=skip_bad)
    with counting("replaying") as progress:
        result = replay_hits(opened, name, options, device_tokens, host_tokens, progress)
    if json:
        typer.echo(msgspec.json.encode(result.to_json()).decode())
        return
    console, totals = Console(), result.totals()
    shown = ", ".join(f"{tier} {n:,}" for tier, n in totals["by_tier"].items()) or "none"
    logical = totals["logical"]
    console.print(f"[bold]{result.policy}[/] on {result.trace}: {len(result.served):,} requests", highlight=False)
    console.print(
        f"logical {logical:,} = cached {totals['cached']:,} + computed {totals['computed']:,}", highlight=False
    )
    console.print(f"cached by tier: {shown}; {totals['cached'] / max(logical, 1):.1%} of all", highlight=False)
    if totals["rejected"]:
        console.print(f"{totals['rejected']:,} requests do not fit and were refused", style="yellow", highlight=False)
    for premise in result.premises:
        console.print(f"- {premise}", style="dim", highlight=False)
