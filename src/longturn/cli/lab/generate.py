"""`longturn lab generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    out: Annotated[Path, typer.Option(help="The file to write, in the `requests` format; gzip if it ends in .gz.")],
    sessions: Annotated[int, typer.Option(help="Conversations.")] = 100,
    turns: Annotated[float, typer.Option(help="Turns of a session, mean.")] = 8,
    system_tokens: Annotated[int, typer.Option(help="Tokens of every system prompt.")] = 1000,
    sharing: Annotated[float, typer.Option(help="Share of sessions with a common system prompt.")] = 1,
    system_prompts: Annotated[int, typer.Option(help="Different common system prompts.")] = 1,
    user_tokens: Annotated[float, typer.Option(help="Tokens of a user's message, mean.")] = 100,
    output_tokens: Annotated[float, typer.Option(help="Tokens of an answer, mean.")] = 200,
    think: Annotated[float, typer.Option(help="Seconds before a follow-up, mean.")] = 30,
    rate: Annotated[float, typer.Option(help="Sessions that begin per second.")] = 0.5,
    branching: Annotated[float, typer.Option(help="Probability that a turn edits an earlier message.")] = 0,
    retries: Annotated[float, typer.Option(help="Probability that an answer is asked for again.")] = 0,
    compaction: Annotated[
        int, typer.Option(help="Window in tokens; a full one has the history replaced by a summary. 0: never.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.")] = 0,
) -> None:
    """Write a synthetic trace of conversations."""
    from longturn.lab.trace import write_requests
    from longturn.lab.trace.generate import Generated, Workload

    workload = Workload(
        sessions=sessions,
        turns=turns,
        system_tokens=system_tokens,
        sharing=sharing,
        system_prompts=system_prompts,
        user_tokens=user_tokens,
        output_tokens=output_tokens,
        think=think,
        rate=rate,
        branching=branching,
        retries=retries,
        compaction=compaction,
        seed=seed,
    )
    n_requests = write_requests(Generated(workload), out)
    typer.echo(f"Wrote {n_requests:,} requests of {sessions:,} sessions to {out}.")
