"""Shapes that real conversations have: a system prompt that users share, an agent with tools, branches and retries."""

from __future__ import annotations

import time

from bench.peers.client import Session
from bench.peers.samples import CACHED, TTFT, WHOLE, Sample, cached, first_tokens
from bench.peers.workloads.contract import Workload

AT_ONCE = 8


class Shared(Workload):
    """Users who come at once, with a system prompt that is new in every repeat, and a question each."""

    name = "shared"

    def __init__(self, users: int, system: int) -> None:
        self.title = f"{users} users behind one system prompt of {system:,} tokens, {AT_ONCE} at a time"
        self.users, self.system = users, system

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        draw = session.prompts.draw
        system = draw(self.system, self.name, repeat)
        prompts = [system + draw(100, self.name, repeat, user) for user in range(self.users)]
        began = time.perf_counter()
        replies = await session.together(prompts, 16, at_once=AT_ONCE)
        whole, samples = time.perf_counter() - began, first_tokens("all users", replies)
        if not any(reply.error for reply in replies):
            samples.append(Sample("all users", WHOLE, whole))
            # Whoever is served first has to compute it: one user's worth is no loss.
            found = sum(min(reply.cached_tokens or 0, self.system) for reply in replies)
            samples.append(Sample("all users", CACHED, min(found / (self.system * (self.users - 1)), 1.0)))
        return samples


class Agent(Workload):
    """A task with tools: each step's result, of 100 to 900 tokens, is put behind all that went before."""

    name = "agent"

    def __init__(self, steps: int) -> None:
        self.title = f"Agent loop of {steps} steps with tool results"
        self.steps = steps

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        draw = session.prompts.draw
        prompt, replies, seen = draw(1200, self.name, repeat), [], 0
        began = time.perf_counter()
        for step in range(self.steps):
            replies.append(await session.ask(prompt, 24, reusable=seen))
            seen = len(prompt)
            prompt = prompt + draw(24 + 100 + 800 * (step % 3 == 1), self.name, repeat, step)
        whole = time.perf_counter() - began
        later, samples = replies[1:], []
        if not any(reply.error for reply in replies):
            samples.append(Sample("whole loop", WHOLE, whole))
        return samples + first_tokens("each step", later) + cached("each step", later)


class Branch(Workload):
    """A conversation is grown; then its turns are asked otherwise, from the last back to the first, and retried."""

    name = "branch"
    title = "Branches and retries of one conversation"

    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        draw = session.prompts.draw
        stem = draw(800, self.name, repeat)
        points = []
        for turn in range(self.turns):
            await session.ask(stem, 8)
            points.append(stem)
            stem = stem + draw(200, self.name, repeat, turn)
        branches, retries = [], []
        for turn, point in reversed(list(enumerate(points))):
            other = point + draw(60, self.name, repeat, turn, "other")
            branches.append(await session.ask(other, 8, reusable=len(point)))
            retries.append(await session.ask(other, 8, reusable=len(other) - 1))
        back = await session.ask(stem, 8, reusable=len(points[-1]))
        samples: list[Sample] = []
        for case, replies in (("other message", branches), ("retry", retries), ("back to the end", [back])):
            samples += first_tokens(case, replies, TTFT) + cached(case, replies)
        return samples
