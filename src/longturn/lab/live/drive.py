"""Sends the calls of a workload: when, how many at once, and each session's one after the other."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import httpx

from longturn.lab.live.history import History
from longturn.lab.live.workload import Call
from longturn.lab.trace.form import Ids
from longturn.lab.wire import Limit, Reply, send

Arrivals = Literal["asap", "recorded", "think"]
"""`asap`: the next one as soon as there is room; `recorded`: at the trace's times; `think`: sessions begin at the
trace's times, then each waits its think time after every answer."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast: requests in flight, arrivals, how many seconds of the trace pass in one, seconds for a request and for
    the whole run (None: as long as it takes)."""

    concurrency: int = 1
    arrivals: Arrivals = "asap"
    speed: float = 1.0
    timeout: float = 300.0
    duration: float | None = None


@dataclass
class Exchange:
    """A call and what came back.

    due_s: when it was to be sent, from the start of the run, None if at once; sent, answer: token ids int64 [n] as an
    engine's cache saw them (one for each word, where text was sent); answer is None if unknown.
    """

    call: Call
    due_s: float | None
    reply: Reply
    sent: Ids
    answer: Ids | None = None


async def drive(
    client: httpx.AsyncClient,
    history: History,
    calls: list[Call],
    pace: Pace,
    exchanges: list[Exchange],
    progress: Callable[[Exchange], None],
) -> None:
    """Send the calls until all are answered or the time is over; what was sent is in `exchanges`, in order of sending.

    Of those that are due the first in the trace goes first, so that a concurrency of 1 keeps the trace's order. When it
    is cancelled, what is in flight stays `interrupted`.
    """
    waiting: dict[str, deque[Call]] = defaultdict(deque)
    for call in calls:
        waiting[call.session].append(call)
    origin = time.perf_counter()
    first = min((call.time for call in calls), default=0.0)
    running: dict[asyncio.Task[None], Call] = {}

    def now() -> float:
        return time.perf_counter() - origin

    def due(call: Call, before: Call | None) -> float:
        if pace.arrivals == "asap":
            return 0.0
        if pace.arrivals == "recorded" or before is None:
            return (call.time - first) / pace.speed
        think = call.time - before.time if call.think is None else call.think
        return now() + max(think, 0.0) / pace.speed

    async def exchange(call: Call, due_s: float) -> None:
        prompt = history.prompt(call)
        labels = {"index": call.index, "id": call.id, "session": call.session}
        one = Exchange(
            call, None if pace.arrivals == "asap" else due_s, Reply(labels, len(prompt)), history.sent(call, prompt)
        )
        exchanges.append(one)
        left = float("inf") if pace.duration is None else pace.duration - now()
        cut = left < pace.timeout
        limit = Limit(left, "--duration", cut) if cut else Limit(pace.timeout, f"--timeout {pace.timeout:g} s")
        answer = await send(client, history.path, history.body(call, prompt), one.reply, now, limit)
        if one.reply.outcome == "ok":
            one.answer = history.answered(call, prompt, answer)
        progress(one)

    ready = [(due(queue[0], None), queue[0].index, session) for session, queue in waiting.items()]
    heapq.heapify(ready)
    try:
        while ready or running:
            while ready and len(running) < pace.concurrency and ready[0][0] <= now():
                due_s, _, session = heapq.heappop(ready)
                call = waiting[session].popleft()
                running[asyncio.create_task(exchange(call, due_s))] = call
            pause = max(ready[0][0] - now(), 0.0) if ready and len(running) < pace.concurrency else None
            if pause is not None and pace.duration is not None:
                pause = min(pause, max(pace.duration - now(), 0.0))
            if running:
                await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(pause or 0.0)
            for task in [task for task in running if task.done()]:
                call = running.pop(task)
                task.result()
                if queue := waiting[call.session]:
                    heapq.heappush(ready, (due(queue[0], call), queue[0].index, call.session))
            if pace.duration is not None and now() >= pace.duration:
                ready.clear()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
