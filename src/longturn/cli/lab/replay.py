"""`longturn lab replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from longturn.lab.replay import Replay
    from longturn.lab.trace import Trace

MODES = ("hits", "timed", "real")


def _clock(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel="With a clock (timed, real)", **more)


def replay(
    trace: Annotated[Path, typer.Argument(help="A trace in any format that `longturn lab trace` reads.")],
    policy: Annotated[str, typer.Option(help="NAME or NAME:key=value,...; see `longturn lab policies`.")] = "longturn",
    device_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the device holds.")] = 65536,
    host_tokens: Annotated[int, typer.Option(min=0, help="Tokens that host memory holds; 0: no such tier.")] = 0,
    mode: Annotated[
        str, typer.Option(help="hits: serially; timed: on a virtual clock; real: computed on this machine.")
    ] = "hits",
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default="all")] = None,
    concurrency: Annotated[
        int | None, _clock("Sessions at a time.", min=1, show_default="arrivals as recorded")
    ] = None,
    think: Annotated[float, _clock("Recorded think times so many times, under --concurrency.", min=0)] = 1.0,
    scale: Annotated[int, _clock("Make all lengths so much shorter.", min=1)] = 1,
    max_running: Annotated[int, _clock("Requests computed at once.", min=1)] = 64,
    chunk_tokens: Annotated[int, _clock("Most tokens in one step.", min=1)] = 2048,
    model: Annotated[str, _clock("timed: a model profile; real: a model.", show_default="demo's")] = "",
    hardware: Annotated[str, _clock("timed: a hardware profile; `local` once calibrated.")] = "h100-sxm",
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every request.")] = False,
) -> None:
    """Replay a trace through one cache policy."""
    import msgspec

    from longturn.cache.policies.options import split
    from longturn.cli.lab.progress import counting
    from longturn.errors import ConfigError
    from longturn.lab.replay import replay_hits
    from longturn.lab.trace import First, open_trace

    if mode not in MODES:
        raise ConfigError(f"no mode is called {mode!r}: choose one of {', '.join(MODES)}")
    name, options = split(policy)
    opened: Trace = open_trace(trace, format=format, skip_bad=skip_bad)
    if requests is not None:
        opened = First(opened, requests)

    def run(progress: Callable[[int], None]) -> Replay:
        if mode == "hits":
            return replay_hits(opened, name, options, device_tokens, host_tokens, progress)
        from longturn.lab.replay.load import Load

        load = Load(concurrency, think, scale, max_running, chunk_tokens)
        if mode == "real":
            from longturn.lab.replay.real import replay_real

            return replay_real(opened, name, options, device_tokens, host_tokens, load, model or "demo", progress)
        from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
        from longturn.lab.replay.timed import replay_timed

        cost = CostModel(load_model_profile(model or "smollm2-135m"), load_hardware_profile(hardware))
        return replay_timed(opened, name, options, device_tokens, host_tokens, cost, load, progress)

    with counting("replaying", requests) as progress:
        result = run(progress)
    if json:
        typer.echo(msgspec.json.encode(result.to_json()).decode())
    else:
        _show(result)


def _show(result: Replay) -> None:
    from rich.console import Console
    from rich.markup import escape

    from longturn.cli.lab.reading import print_premises

    console, totals = Console(), result.totals()
    by_tier = ", ".join(f"{tier} {n:,}" for tier, n in totals["by_tier"].items()) or "none"
    logical, cached = totals["logical"], totals["cached"]
    console.print(
        f"[bold]{result.policy}[/] on {escape(result.trace)}: {len(result.served):,} requests", highlight=False
    )
    console.print(f"logical {logical:,} = cached {cached:,} + computed {totals['computed']:,}", highlight=False)
    console.print(f"cached by tier: {by_tier}; {cached / max(logical, 1):.1%} of all", highlight=False)
    if totals["rejected"]:
        console.print(f"{totals['rejected']:,} requests do not fit and were refused", style="yellow", highlight=False)
    if times := result.times():
        what = "modelled" if result.mode == "timed" else "measured"
        console.print(
            f"time to first token, {what}: median {times['ttft_p50']:.3f} s, 95% under {times['ttft_p95']:.3f} s; "
            f"all done after {times['seconds']:,.1f} s",
            highlight=False,
        )
    print_premises(console, result.premises)
