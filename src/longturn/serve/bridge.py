"""From the engine's thread to asyncio and back: requests go in, their outputs come out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from longturn.engine import Request
from longturn.errors import LongturnError
from longturn.serve.errors import shutting_down

if TYPE_CHECKING:
    from longturn.cache import Hint, Tokens
    from longturn.engine import EngineService, Output, SamplingParams
    from longturn.ledger import RequestLine


Letter = tuple["asyncio.Queue[tuple[int, Output]]", tuple[int, "Output"]]
# What waits for each loop, so that it is woken once for all that a step brings.
_letters: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Letter]] = WeakKeyDictionary()
# Two engines that post at once would each take the other's letter for one that the loop was woken for.
_posting = threading.Lock()


def _hand_over(letters: deque[Letter]) -> None:
    while letters:
        queue, output = letters.popleft()
        queue.put_nowait(output)


class Answers:
    """The requests that one client's call takes, and their outputs as they come.

    Belongs to one event loop. Whoever makes one must close it: that frees all that unfinished requests hold. The queue
    holds at most the answers themselves, so a slow client costs no more than that. on_gap: told the seconds between two
    tokens of a request, from the engine's thread.
    """

    def __init__(self, service: EngineService, on_gap: Callable[[float], None] = lambda seconds: None) -> None:
        self._service = service
        self._on_gap = on_gap
        self._loop = asyncio.get_running_loop()
        self._letters = _letters.setdefault(self._loop, deque())
        self._queue: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        self._indexes: dict[str, int] = {}
        self._open: set[str] = set()
        self.lines: list[RequestLine] = []
        """The ledger's lines of the requests that have finished."""

    def ask(
        self,
        id: str,
        tokens: Tokens,
        params: SamplingParams,
        *,
        salt: str = "",
        session: str | None = None,
        priority: int = 0,
        hints: Sequence[Hint] = (),
    ) -> None:
        """Submit one more request; its outputs carry the number of requests before it. Raises what `submit` raises."""
        index = len(self._indexes)
        self._service.submit(
            Request(
                tokens, params, self._deliver(index), salt=salt, session=session, priority=priority, hints=hints, id=id
            )
        )
        self._indexes[id] = index
        self._open.add(id)

    @property
    def finished(self) -> bool:
        """Whether no more output will come."""
        return not self._open

    async def next(self) -> tuple[int, Output]:
        """The next output and the index of its request. Raises what kept the request from its own end."""
        index, output = await self._queue.get()
        if output.line is not None:
            self.lines.append(output.line)
        if output.finish_reason is not None:
            self._open.discard(output.request_id)
        if output.finish_reason == "error":
            raise output.error or LongturnError("the engine has failed: see the server's log")
        if output.finish_reason == "cancelled":
            # Nobody here cancels what is still wanted: it was the engine, which is being closed.
            raise shutting_down()
        return index, output

    async def __aiter__(self) -> AsyncIterator[tuple[int, Output]]:
        while not self.finished:
            yield await self.next()

    def close(self) -> None:
        """Cancel what has not finished. May be called twice."""
        for id in self._open:
            self._service.cancel(id)
        self._open.clear()

    def _deliver(self, index: int) -> Callable[[Output], None]:
        """What the engine's thread calls with each output of a request; it must never fail there."""
        last: float | None = None

        def deliver(output: Output) -> None:
            nonlocal last
            if output.token_ids:
                now = time.monotonic()
                if last is not None:
                    self._on_gap(now - last)
                last = now
            with _posting:
                self._letters.append((self._queue, (index, output)))
                first = len(self._letters) == 1
            if first:
                # A loop that is closed has nobody left who waits for the output.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(_hand_over, self._letters)

        return deliver
