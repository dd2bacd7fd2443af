"""`Tap`: the proxy's side of the pipe to the accountant, which reads along in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from longturn.errors import LedgerError
from longturn.gateway import frames
from longturn.gateway.child import Child
from longturn.gateway.frames import Answered, Asked, Charged, Ended, Got, Sent

log = logging.getLogger(__name__)

BACKLOG = 64 << 20
"""Bytes that may wait for the accountant; what comes above that is passed on, but not read along."""
WAIT_SECONDS = 0.02
"""For how long frames are collected before they are told."""
RESTART_SECONDS = 1.0
PIECE = 16 << 10
"""Bytes of an answer that are collected before they are told."""


class Tap:
    """Starts an accountant, and tells it about exchanges without ever waiting for it.

    command: the accountant's program and arguments. on_charge: called with every charge that it reports.
    """

    def __init__(self, command: Sequence[str], on_charge: Callable[[Charged], None]) -> None:
        self._command = command
        self._on_charge = on_charge
        self._child: Child | None = None
        self._listener: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._waiting = bytearray()
        self._closing = False

    async def __aenter__(self) -> Self:
        self._child = await Child.start(self._command)
        self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the accountant finish what it was told."""
        self._closing = True
        assert self._listener is not None
        if self._child is not None:
            self._flush()
            self._child.pipe.close()
        else:
            self._listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listener

    def exchange(
        self, dialect: str, upstream: str, path: str, key: str | None, session: str | None, encoding: str, betas: str
    ) -> Exchange:
        """A new exchange, told as it goes."""
        exchange = Exchange(self, next(self._numbers))
        exchange.tell(Asked(exchange.id, time.time(), dialect, upstream, path, key, session, encoding, betas))
        return exchange

    def tell(self, frame: frames.Frame, *, always: bool = False) -> bool:
        """Have `frame` told soon; False where the accountant is too far behind, unless it is told `always`."""
        if self._child is None or self._child.pipe.is_closing():
            return False
        if self._child.pipe.get_write_buffer_size() + len(self._waiting) > BACKLOG and not always:
            return False
        if not self._waiting:
            # Not at once: an accountant that wakes up takes the processor from the request that woke it.
            asyncio.get_running_loop().call_later(WAIT_SECONDS, self._flush)
        self._waiting += frames.packed(frame)
        return True

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        if waiting and self._child is not None:
            self._child.pipe.write(waiting)

    async def _listen(self) -> None:
        while self._child is not None:
            while (frame := await self._child.heard()) is not None:
                assert isinstance(frame, Charged)
                self._on_charge(frame)
            code = await self._child.process.wait()
            if self._closing:
                return
            log.error("the accountant has ended (%s): starting another; what it was told is not counted", code)
            self._child = None
            self._waiting.clear()
            while self._child is None:
                await asyncio.sleep(RESTART_SECONDS)
                with contextlib.suppress(LedgerError):
                    self._child = await Child.start(self._command)


class Exchange:
    """One request and its answer, as they pass by. Nothing here waits."""

    def __init__(self, tap: Tap, number: int) -> None:
        self.id = number
        self._tap = tap
        self._lost = False
        self._waiting: list[bytes] = []
        self._size = 0
        self._sent = self._got = 0
        self._began = time.monotonic()
        self._first: float | None = None
        self._latest = 0.0
        self._silence = 0.0

    def tell(self, frame: frames.Frame) -> None:
        """Tell, unless something before it could not be told."""
        self._lost = self._lost or not self._tap.tell(frame)

    def sent(self, data: bytes) -> None:
        """Bytes of the request have passed."""
        self._sent += len(data)
        self.tell(Sent(self.id, data))

    def answered(self, status: int, kind: str, encoding: str) -> None:
        """The answer begins."""
        self.tell(Answered(self.id, status, kind, encoding))

    def got(self, data: bytes) -> None:
        """Bytes of the answer have passed."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        else:
            self._silence = max(self._silence, now - self._latest)
        self._latest = now
        self._got += len(data)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= PIECE:
            self._flush()

    def ended(self, outcome: str) -> None:
        """It is over."""
        self._flush()
        now = time.monotonic()
        if self._first is not None:
            self._silence = max(self._silence, now - self._latest)
        # Short, and told even to an accountant that is behind: every request has its line.
        self._tap.tell(
            Ended(
                self.id,
                outcome,
                total_ms=(now - self._began) * 1000,
                ttft_ms=None if self._first is None else (self._first - self._began) * 1000,
                silence_ms=self._silence * 1000,
                sent_bytes=self._sent,
                got_bytes=self._got,
                lost=self._lost,
            ),
            always=True,
        )

    def _flush(self) -> None:
        if self._waiting:
            self.tell(Got(self.id, b"".join(self._waiting)))
            self._waiting.clear()
            self._size = 0


def accountant(*arguments: str) -> list[str]:
    """The command line of an accountant."""
    return [sys.executable, "-m", "longturn.gateway.accountant", *arguments]
