"""The server is killed in the middle of conversations."""

from __future__ import annotations

import asyncio

from bench.peers.client import Session
from bench.peers.floors import Floors
from bench.peers.samples import TTFT, Metric, Sample, cached, first_tokens
from bench.peers.workloads.contract import Floor, Workload

NEW = 64
SETTLE_S = 2.0
READY = Metric("until it serves again", "s")


class Restart(Workload):
    """First turns, two seconds of rest, SIGKILL, start, second turns."""

    name = "restart"
    pools = "tight"
    most_repeats = 2  # vLLM takes more than half a minute to start

    def __init__(self, conversations: int, tokens: int) -> None:
        self.title = f"{conversations} conversations of {tokens:,} tokens over a restart"
        self.conversations, self.tokens = conversations, tokens

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        draw = session.prompts.draw
        prompts = [draw(self.tokens, self.name, repeat, one) for one in range(self.conversations)]
        await session.together(prompts, 1, at_once=1)
        await asyncio.sleep(SETTLE_S)
        session.server.stop()
        await session.server.start()
        ready = Sample("the server", READY, session.server.started_in_s)
        await session.ask(draw(64, self.name, repeat, "warm-up"), 2)
        later = [prompt + draw(NEW, self.name, repeat, one, "new") for one, prompt in enumerate(prompts)]
        replies = await session.together(later, 1, at_once=1, reusable=self.tokens)
        return [*first_tokens("second turn", replies), *cached("second turn", replies), ready]

    def floor(self, floors: Floors) -> Floor:
        return {("second turn", TTFT): floors.prefill(NEW, self.tokens)}
