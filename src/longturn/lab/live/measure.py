"""One run from beginning to end: find the server, prepare the workload, send it, read what the server says, compare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from longturn.dialects.engines import Engine, Way
from longturn.errors import ConfigError
from longturn.lab.live import metrics, report
from longturn.lab.live.drive import Exchange, Pace, drive
from longturn.lab.live.history import History
from longturn.lab.live.modelled import Model, compare
from longturn.lab.live.server import Server, check_address, find
from longturn.lab.live.workload import Workload, prepare
from longturn.lab.trace import Trace
from longturn.lab.wire import client as open_client

SETTLING = 3.0
"""Seconds within which engines that count behind the answer are waited for."""


@dataclass(frozen=True)
class Plan:
    """What to send where. engine, model, window, way: None is what the server says or its engine takes; scale: None is
    what fits the window; requests: the first of the trace; answer: longest answer in tokens; vocab: ids sent are below
    it; seed: of the content, None for content that no server has seen; beside: the policy to compare with."""

    url: str
    engine: str | None = None
    model: str | None = None
    window: int | None = None
    way: Way | None = None
    requests: int = 100
    scale: float | None = None
    answer: int | None = None
    vocab: int = 32_000
    seed: int | None = None
    pace: Pace = field(default_factory=Pace)
    beside: Model | None = None
    api_key: str | None = field(default=None, repr=False)
    allow_remote: bool = False

    def __post_init__(self) -> None:
        positive = {
            "--requests": self.requests,
            "--scale": self.scale,
            "--window": self.window,
            "--output-tokens": self.answer,
            "--concurrency": self.pace.concurrency,
            "--speed": self.pace.speed,
            "--timeout": self.pace.timeout,
            "--duration": self.pace.duration,
        }
        for name, value in positive.items():
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value:g}: give a number above 0")
        if self.vocab < 64:
            raise ConfigError(f"--vocab is {self.vocab}: give the number of tokens that the model knows, at least 64")
        check_address(self.url, allow_remote=self.allow_remote)


async def measure(
    trace: Trace,
    plan: Plan,
    prepared: Callable[[Server, Workload], None] = lambda server, workload: None,
    progress: Callable[[Exchange], None] = lambda exchange: None,
) -> dict[str, Any]:
    """Run the plan and return its report, whose fields `report` and `modelled` describe.

    prepared: called once before anything is sent; progress: after every request. A run that is cancelled while it sends
    returns the report of what it has, with `interrupted` set. Raises LongturnError if there is no server, ConfigError
    or TraceError for what cannot be sent.
    """
    if plan.beside is not None:
        compare([], plan.beside)  # a policy that cannot be is better refused before an hour of load than after
    seed = time.time_ns() if plan.seed is None else plan.seed
    async with open_client(plan.url, api_key=plan.api_key) as client:
        server = await find(client, engine=plan.engine, model=plan.model, window=plan.window)
        way = plan.way or server.engine.way
        workload = prepare(
            trace,
            requests=plan.requests,
            room=_room(server.window, way),
            scale=plan.scale,
            answer=plan.answer,
            vocab=plan.vocab,
            seed=seed,
        )
        prepared(server, workload)
        history = History(server.engine, way, server.model)
        before = await metrics.read(client, server.engine)
        exchanges: list[Exchange] = []
        interrupted = False
        began = time.perf_counter()
        try:
            await drive(client, history, workload.calls, plan.pace, exchanges, progress)
        except asyncio.CancelledError:
            interrupted = True
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        seconds = time.perf_counter() - began
        after = await _settled(client, server.engine)
    report.settle_zeros(exchanges, server.engine)
    sums = report.totals(exchanges)
    told, modelled = (None, None) if plan.beside is None else compare(exchanges, plan.beside)
    return {
        "url": plan.url,
        "engine": server.engine.name,
        "model": server.model,
        "window": server.window,
        "way": way,
        "trace": trace.name,
        "scale": workload.scale,
        "seed": seed,
        "pace": asdict(plan.pace),
        "seconds": seconds,
        "interrupted": interrupted,
        "notes": [*server.notes, *workload.notes, *_premises(history, exchanges, server.engine, sums, interrupted)],
        "totals": sums,
        "times": report.times(exchanges),
        "metrics": report.own_counters(server.engine, before, after, sums),
        "modelled": modelled,
        "requests": [report.row(one, told) for one in exchanges],
    }


def _room(window: int | None, way: Way) -> int | None:
    """What a prompt and its answer may take. A word may be more than a token, and templates take tokens too."""
    return window if window is None or way == "ids" else window * 3 // 4


async def _settled(client: httpx.AsyncClient, engine: Engine) -> metrics.Page:
    """The engine's counters once they stand still."""
    page, until = await metrics.read(client, engine), time.perf_counter() + SETTLING
    while not page.trouble and time.perf_counter() < until:
        await asyncio.sleep(0.15)
        page, earlier = await metrics.read(client, engine), page
        if page.counters == earlier.counters:
            break
    return page


def _premises(
    history: History, exchanges: list[Exchange], engine: Engine, sums: dict[str, Any], interrupted: bool
) -> list[str]:
    notes = ["each session's requests run one after the other, and the client resends its whole history"]
    if history.swapped:
        notes.append(f"{history.swapped:,} answers of the server took the place of the trace's in later prompts")
    if history.swapped < sums["answered"]:
        rest = sums["answered"] - history.swapped
        notes.append(f"in place of {rest:,} answers later prompts hold the trace's, unknown to the server")
    if sums["reported"] < sums["answered"]:
        missing = sums["answered"] - sums["reported"]
        told = f"{missing:,} answers do not report cached tokens"
        if engine.usage_option is None:
            notes.append(f"{told}: {engine.name} never does")
        elif engine.usage_option:
            notes.append(f"{told}: start the server with {engine.usage_option}")
        else:
            notes.append(told)
    if sums["answered"] < sums["requests"]:
        notes.append("of requests that failed, what was computed is in the engine's own counters alone")
    if history.way != "ids":
        notes.append("text is sent, a word for each token: the server's tokenizer may count otherwise")
    if interrupted:
        notes.append(f"the run was interrupted after {len(exchanges):,} requests")
    return notes
