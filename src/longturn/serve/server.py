"""uvicorn, started and stopped the way an engine needs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from longturn.listening import listen, no_address, url_of

if TYPE_CHECKING:
    from longturn.engine import EngineService

log = logging.getLogger(__name__)

GRACE = 5
"""Seconds that running answers get to end by themselves when the server stops."""
LIMIT = GRACE + 2
"""Seconds after which connections are dropped, whatever they are waiting for."""
_SWITCH_SECONDS = 0.0002


def run(app: FastAPI, service: EngineService, sock: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then stop within ten seconds. Call it from the main thread.

    Raises ConfigError when another process has begun to listen on the same address meanwhile.
    """
    # The engine's thread would wait up to 5 ms, a third of a step, for this one to let it go on.
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = _Server(app, service)
    # uvicorn raises the signal that stopped it once more when it is done, for the handler that was there before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    host, port = sock.getsockname()[:2]
    try:
        server.run(sockets=[sock])
    except OSError as error:
        raise no_address(host, port, error) from error


@contextlib.contextmanager
def in_background(app: FastAPI, service: EngineService) -> Iterator[str]:
    """Serve on a free port of this machine while the context lasts; gives the URL. Signals stay with the caller."""
    with listen("127.0.0.1", 0) as sock:
        server = _Server(app, service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="longturn-server", daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        try:
            yield url_of(sock)
        finally:
            server.should_exit = True
            thread.join()


class _Server(uvicorn.Server):
    """Stops in this order: no new connections; time to finish; the engine ends what is left, with an error."""

    def __init__(self, app: FastAPI, service: EngineService) -> None:
        # What is logged, and how, is the caller's affair.
        super().__init__(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=LIMIT))
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(GRACE)
        await asyncio.to_thread(self._service.close)
