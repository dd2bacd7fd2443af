"""Many conversations that take turns."""

from __future__ import annotations

import asyncio
import random

from bench.peers.client import Session
from bench.peers.floors import Floors
from bench.peers.samples import FILL, TTFT, Sample, cached, first_tokens
from bench.peers.workloads.contract import Floor, Workload
from longturn.lab.wire import Reply

MESSAGE, ANSWER, WRITTEN = 48, 16, 8
"""Tokens of a turn's message, of the answer as the client sends it back, and of what is really generated.

Text that a client sends back is tokenised anew and need not be what was generated; here all engines get the same words.
"""
THINK_S = 0.1
AT_ONCE = 2


class Rounds(Workload):
    """Conversations visited in turn, two at a time, each after a moment of thinking. A repeat is one turn of all."""

    def __init__(self, name: str, pools: str, conversations: int, tokens: int) -> None:
        self.name, self.pools = name, pools
        self.title = f"{conversations} conversations of {tokens:,} tokens, round-robin"
        self.conversations, self.tokens = conversations, tokens

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        samples = []
        if repeat == 0:
            samples += first_tokens("first turn", await self._round(session, 0), FILL)
        replies = await self._round(session, repeat + 1)
        return samples + first_tokens("later turns", replies) + cached("later turns", replies)

    async def _round(self, session: Session, turn: int) -> list[Reply]:
        room, rng = asyncio.Semaphore(AT_ONCE), random.Random(f"{self.name}/{turn}")

        async def visit(conversation: int, think_s: float) -> Reply:
            async with room:
                await asyncio.sleep(think_s)
                prompt = session.prompts.draw(self.tokens, self.name, conversation)
                for earlier in range(1, turn + 1):
                    prompt += session.prompts.draw(ANSWER + MESSAGE, self.name, conversation, earlier)
                reusable = len(prompt) - ANSWER - MESSAGE if turn else 0
                return await session.ask(prompt, WRITTEN, reusable)

        visits = [visit(one, rng.uniform(0.5, 1.5) * THINK_S) for one in range(self.conversations)]
        return await asyncio.gather(*visits)

    def floor(self, floors: Floors) -> Floor:
        return {
            ("first turn", FILL): floors.prefill(self.tokens),
            ("later turns", TTFT): floors.prefill(ANSWER + MESSAGE, self.tokens),
        }
