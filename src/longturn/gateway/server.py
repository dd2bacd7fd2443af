"""The gateway as a process: the proxy on a socket, the accountant beside it, both ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web

from longturn.gateway.budgets import Budget, Budgets
from longturn.gateway.entries import Entries
from longturn.gateway.proxy import LONGEST_HEADER, Proxy
from longturn.gateway.routes import Upstreams
from longturn.gateway.tap import Tap, accountant
from longturn.ledger.book import Book

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds that running streams get to end by themselves when the gateway stops."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a gateway is set up.

    ledger: SQLAlchemy URL of the book. budget: of each key; budgets: other ones, by the key's hash. prices: whose
    prices hold, as `genai-prices` names them; None: told by the upstreams' URLs. content: keep what verdicts quote.
    """

    upstreams: Upstreams
    ledger: str
    budget: Budget | None = None
    budgets: dict[str, Budget] = field(default_factory=dict)
    prices: str | None = None
    content: bool = False

    @property
    def arguments(self) -> list[str]:
        """For the accountant."""
        prices = ["--prices", self.prices] if self.prices else []
        engines = [argument for url in self.upstreams.urls for argument in ("--engine", url)]
        return ["--ledger", self.ledger, *prices, *(["--content"] if self.content else []), *engines]


@contextlib.asynccontextmanager
async def running(options: Options, sock: socket.socket) -> AsyncIterator[None]:
    """Serve on `sock` while the context lasts. Leaving it waits for streams a while, and for every line to be written.

    Raises LedgerError where the book cannot be used.
    """
    allow_many_connections()
    # Opened here as well, so that what is wrong with it is said at once.
    with Book(options.ledger), Entries(options.ledger) as entries:
        budgets = Budgets(options.budget, options.budgets, entries.spent)
    # aiohttp quotes what it cannot parse, which may be a key.
    quiet = log.getChild("http")
    quiet.setLevel(logging.CRITICAL)
    tap = Tap(accountant(*options.arguments), lambda charged: budgets.charge(charged.key, charged.at, charged.usd))
    async with tap, Proxy(options.upstreams, tap, budgets) as proxy:
        runner = web.AppRunner(
            proxy.app(),
            handler_cancellation=True,
            access_log=None,
            logger=quiet,
            auto_decompress=False,
            shutdown_timeout=GRACE / 2,  # it waits twice
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, sock, backlog=2048).start()
            yield
        finally:
            proxy.stopping = True
            await runner.cleanup()


def run(options: Options, sock: socket.socket, started: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Call it from the main thread. Raises LedgerError as `running` does.

    started: called once clients can connect.
    """
    asyncio.run(_until_signalled(options, sock, started))


async def _until_signalled(options: Options, sock: socket.socket, started: Callable[[], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(options, sock):
        started()
        await stop.wait()


def allow_many_connections() -> None:
    """Raise this process's limit of open files as far as it may: a stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
