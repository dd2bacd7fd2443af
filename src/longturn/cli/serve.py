"""`longturn serve`."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longturn.cli.engine_options import takes_engine_options

if TYPE_CHECKING:
    from longturn.engine import EngineOptions

log = logging.getLogger(__name__)


@takes_engine_options
def serve(
    engine: EngineOptions,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 is any free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="LONGTURN_API_KEYS", help="A key that clients must send; may be repeated."),
    ] = None,
    shared_cache: Annotated[
        bool, typer.Option("--shared-cache", help="Let all keys share one cache instead of having one each.")
    ] = False,
    ledger: Annotated[
        str | None, typer.Option(help="Keep the line of every request in this SQLite file or database URL.")
    ] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")] = "info",
) -> None:
    """Serve a model with the APIs of OpenAI, Anthropic and Google."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    from longturn.engine import EngineService
    from longturn.serve import BookWriter, Keys, create_app, listen, run, url_of

    keys = Keys(api_key or (), shared_cache=shared_cache)
    with contextlib.ExitStack() as stack:
        # What can fail at once comes first: loading a model takes seconds.
        sock = stack.enter_context(listen(host, port))
        if not api_key and not ipaddress.ip_address(sock.getsockname()[0]).is_loopback:
            log.warning("anybody who reaches %s may use this server: set --api-key", url_of(sock))
        writer = None
        if ledger is not None:
            from longturn.ledger.book import Book

            book = stack.enter_context(Book(ledger if "://" in ledger else f"sqlite:///{ledger}"))
            writer = stack.enter_context(BookWriter(book))
        service = EngineService.start(engine, lambda message: typer.echo(message, err=True))
        stack.callback(service.close)
        if writer is not None:
            service.on_line(writer.write)
        app = create_app(service, keys)
        typer.echo(f"{service.model.name} is served at {url_of(sock)}/v1 (context {service.model.context})", err=True)
        run(app, service, sock)
