"""One run: all engines up at once, one awake at a time, repeats interleaved so that drift of the machine cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.peers.client import Session
from bench.peers.others import Others
from bench.peers.places import Places
from bench.peers.pools import POOLS, Pools
from bench.peers.prompts import Prompts
from bench.peers.samples import Metric, Sample
from bench.peers.server import Server
from bench.peers.workloads import Workload
from longturn.errors import LongturnError

Say = Callable[[str], None]
Key = tuple[str, str, Metric, str]
"""Workload, case, metric, engine."""

REST_S = 0.5
"""An engine's first moments after the others', for what it still had to write."""


@dataclass
class Results:
    """values: one list per repeat that brought any. memory: peak bytes by pools and engine; starts: seconds, likewise.

    others: share of the processors that neither client nor engine took, by workload and engine. troubles: for people.
    """

    values: dict[Key, list[list[float]]] = field(default_factory=dict)
    memory: dict[tuple[str, str], int] = field(default_factory=dict)
    starts: dict[tuple[str, str], float] = field(default_factory=dict)
    others: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    cut: str = ""

    def add(self, workload: str, engine: str, samples: Sequence[Sample]) -> None:
        """Those of one repeat."""
        grouped: dict[Key, list[float]] = {}
        for sample in samples:
            grouped.setdefault((workload, sample.case, sample.metric, engine), []).append(sample.value)
        for key, values in grouped.items():
            self.values.setdefault(key, []).append(values)


@dataclass
class Run:
    """Settings. ends_s: by time.perf_counter, when no repeat is begun any more and requests are cut off."""

    places: Places
    engines: Sequence[str]
    workloads: Sequence[Workload]
    repeats: int
    seed: int
    ends_s: float
    say: Say
    results: Results = field(default_factory=Results)

    async def all(self) -> None:
        """Run everything; what was measured is in `results` even when this is cancelled or its time is over."""
        for name in dict.fromkeys(workload.pools for workload in self.workloads):
            if self._over():
                return
            await self._with_pools(POOLS[name], [one for one in self.workloads if one.pools == name])

    async def _with_pools(self, pools: Pools, workloads: Sequence[Workload]) -> None:
        servers = [Server(engine, self.places, pools) for engine in self.engines]
        sessions: list[Session] = []
        try:
            self.say(f"pools {pools.name!r} ({pools.title}): starting {', '.join(self.engines)}")
            prompts = Prompts(self.places.model, self.seed)
            for server in servers:
                # One after the other: two that compile at once may run out of patience.
                if await self._start(server, pools):
                    sessions.append(Session(server, prompts, self.ends_s))
            for workload in workloads:
                await self._measure(workload, sessions)
        finally:
            for server in servers:
                server.close()
            for session in sessions:
                await session.close()

    async def _start(self, server: Server, pools: Pools) -> bool:
        try:
            await server.start()
        except LongturnError as error:
            self._trouble(f"{server.engine} with pools {pools.name!r}: {error}")
            return False
        self.results.starts[pools.name, server.engine] = server.started_in_s
        self.say(f"  {server.engine} is up after {server.started_in_s:.1f} s")
        server.pause()
        return True

    async def _measure(self, workload: Workload, sessions: list[Session]) -> None:
        for repeat in range(min(self.repeats, workload.most_repeats)):
            # Each engine goes first in turn.
            shift = repeat % max(len(sessions), 1)
            for session in sessions[shift:] + sessions[:shift]:
                if self._over():
                    return
                await self._once(workload, session, repeat)

    async def _once(self, workload: Workload, session: Session, repeat: int) -> None:
        server, asked, began = session.server, len(session.replies), time.perf_counter()
        server.resume()
        try:
            if repeat == 0:
                await session.ask(session.prompts.draw(32, "warm-up", workload.name), 4)
            await asyncio.sleep(REST_S)
            others = Others(server)
            samples = await workload.run(session, repeat)
            taken = others.share()
        except LongturnError as error:
            self._trouble(f"{session.engine}, {workload.name}: {error}")
            return
        finally:
            server.pause()
        key = workload.pools, session.engine
        self.results.memory[key] = max(self.results.memory.get(key, 0), server.resident_bytes())
        failed = [reply for reply in session.replies[asked:] if reply.error and reply.outcome != "interrupted"]
        if failed:
            self._trouble(f"{session.engine}, {workload.name}, repeat {repeat + 1}: {len(failed)} x {failed[0].error}")
        self.results.add(workload.name, session.engine, samples)
        self.results.others.setdefault((workload.name, session.engine), []).append(taken)
        took = time.perf_counter() - began
        self.say(f"  {workload.name:10} repeat {repeat + 1}  {session.engine:9} {took:6.1f} s, others {taken:4.0%}")

    def _over(self) -> bool:
        if time.perf_counter() < self.ends_s:
            return False
        self.results.cut = "the run's time was over before everything was measured"
        return True

    def _trouble(self, text: str) -> None:
        self.results.troubles.append(text)
        self.say(f"  trouble: {text}")
