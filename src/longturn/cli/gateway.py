"""`longturn gateway`."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import typer


def gateway(
    upstream: Annotated[
        str | None, typer.Option(help="Where all requests go that have no upstream of their own below.")
    ] = None,
    openai: Annotated[str | None, typer.Option(help="Where Chat Completions and Responses go.")] = None,
    anthropic: Annotated[str | None, typer.Option(help="Where Messages go.")] = None,
    gemini: Annotated[str | None, typer.Option(help="Where generateContent goes.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 is any free one.")] = 8080,
    ledger: Annotated[str, typer.Option(help="SQLite file or database URL of the book.")] = "longturn-gateway.db",
    budget: Annotated[
        list[str] | None,
        typer.Option(help="US dollars that each key may spend: 5, 5/day, 100/month; or of one key: HASH=5/day."),
    ] = None,
    prices: Annotated[
        str | None, typer.Option(help="Whose prices hold (openai, anthropic, google, ...).", show_default="by URL")
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Keep in the ledger what explanations quote of prompts.")
    ] = False,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")] = "info",
) -> None:
    """Pass requests on to providers and engines, byte for byte, and keep the ledger of them.

    Without any upstream they go to the public APIs of OpenAI, Anthropic and Google.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    from longturn.gateway import Budget, Options, Upstreams, run
    from longturn.listening import listen, url_of

    upstreams = Upstreams(upstream, openai=openai, anthropic=anthropic, gemini=gemini)
    named = dict(text.split("=", 1) for text in budget or () if "=" in text)
    every = [text for text in budget or () if "=" not in text]
    options = Options(
        upstreams,
        ledger if "://" in ledger else f"sqlite:///{ledger}",
        Budget.read(every[-1]) if every else None,
        {key: Budget.read(text) for key, text in named.items()},
        prices,
        content,
    )
    with listen(host, port) as sock:
        run(options, sock, lambda: typer.echo(f"The gateway is at {url_of(sock)}, its ledger is {ledger}", err=True))
