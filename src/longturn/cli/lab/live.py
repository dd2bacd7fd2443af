"""`longturn lab live`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longturn.cli.errors import INTERRUPTED

if TYPE_CHECKING:
    from longturn.lab.live import Exchange, Plan
    from longturn.lab.live.server import Server
    from longturn.lab.live.workload import Workload
    from longturn.lab.trace import Trace


def live(
    trace: Annotated[Path, typer.Argument(help="A trace in any format that `longturn lab trace` reads.")],
    url: Annotated[str, typer.Option(help="The server to load, with or without /v1.")] = "http://127.0.0.1:8000",
    engine: Annotated[
        str | None, typer.Option(help="Which engine it is.", show_default="by its metrics and models")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for.", show_default="its first")] = None,
    send: Annotated[
        Literal["ids", "text", "chat"] | None,
        typer.Option(help="Prompts as token ids, as text, or as chat messages.", show_default="what the engine takes"),
    ] = None,
    requests: Annotated[int, typer.Option(help="How many requests of the trace to send at most.")] = 100,
    concurrency: Annotated[int, typer.Option(help="Requests in flight at most; 1 keeps the trace's order.")] = 1,
    duration: Annotated[float | None, typer.Option(help="Seconds after which the run ends.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one request may take.")] = 300.0,
    arrivals: Annotated[
        Literal["asap", "recorded", "think"],
        typer.Option(help="asap: at once; recorded: at the trace's times; think: its pauses after every answer."),
    ] = "asap",
    speed: Annotated[float, typer.Option(help="Seconds of the trace that pass in one of ours.")] = 1.0,
    scale: Annotated[
        float | None, typer.Option(help="Tokens to send for each of the trace.", show_default="what fits, at most 1")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="The server's window in tokens.", show_default="what it says")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(help="Longest answer to ask for.", show_default="the trace's")
    ] = None,
    vocab: Annotated[int, typer.Option(help="Token ids to send are below this.")] = 32_000,
    seed: Annotated[
        int | None, typer.Option(help="Of the content; the same one again finds it cached.", show_default="the clock")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Set this policy beside what is measured: NAME or NAME:key=value,...")
    ] = None,
    device_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that its device holds.")] = None,
    host_tokens: Annotated[int, typer.Option(min=0, help="Tokens that its host memory holds.")] = 0,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Allow a server on another machine.")] = False,
    api_key: Annotated[str | None, typer.Option(envvar="LONGTURN_API_KEY", help="The key for --url.")] = None,
    format: Annotated[str | None, typer.Option(help="The trace's format.", show_default="by its content")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that cannot be read.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every request.")] = False,
) -> None:
    """Send a trace's requests to a real server and compare what it reports with a model of it.

    Content is synthetic and new to the server unless --seed is given. The exit status is 1 if a request failed.
    """
    import msgspec
    from rich.console import Console

    from longturn.cache.policies.options import split
    from longturn.cli.lab.live_table import print_report
    from longturn.errors import ConfigError
    from longturn.lab.trace import open_trace

    try:
        from longturn.lab.live import Model, Pace, Plan
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs the lab's packages ({error}): pip install 'longturn[lab]'") from None
    if policy is not None and device_tokens is None:
        raise ConfigError("--policy needs --device-tokens, the room for KV that the server has")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: there is no folder {out.parent}")
    beside = None if policy is None else Model(*split(policy), device_tokens or 0, host_tokens)
    plan = Plan(
        url=url,
        engine=engine,
        model=model,
        window=window,
        way=send,
        requests=requests,
        scale=scale,
        answer=output_tokens,
        vocab=vocab,
        seed=seed,
        pace=Pace(concurrency, arrivals, speed, timeout, duration),
        beside=beside,
        api_key=api_key,
        allow_remote=allow_remote,
    )
    report = _measured(open_trace(trace, format=format, skip_bad=skip_bad), plan)
    encoded = msgspec.json.encode(report)
    if json:
        typer.echo(encoded.decode())
    else:
        print_report(Console(), report)
    if out is not None:
        try:
            out.write_bytes(encoded + b"\n")
        except OSError as error:
            raise ConfigError(f"{out} cannot be written ({error.strerror}): give a file to --out") from None
    if report["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    if report["totals"]["answered"] < report["totals"]["requests"]:
        raise typer.Exit(1)


def _measured(trace: Trace, plan: Plan) -> dict[str, Any]:
    import asyncio
    import signal

    from longturn.lab.live import measure

    # Ending a run from outside is no reason to lose it either.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with _watched() as (prepared, progress):
        return asyncio.run(measure(trace, plan, prepared, progress))


@contextmanager
def _watched() -> Iterator[tuple[Callable[[Server, Workload], None], Callable[[Exchange], None]]]:
    """A bar on stderr, for people: what is loaded, how many requests are done, how many of them failed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    failed = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("looking at the server", total=None)

        def prepared(server: Server, workload: Workload) -> None:
            bar.update(task, description=server.engine.name, total=len(workload.calls))

        def progress(exchange: Exchange) -> None:
            nonlocal failed
            if exchange.reply.outcome != "ok":
                failed += 1
                bar.update(task, description=f"{failed} failed")
            bar.advance(task)

        yield prepared, progress
