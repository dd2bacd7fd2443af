"""One request at a time: prompts that nobody has seen, and prompts whose beginning is cached."""

from __future__ import annotations

from bench.peers.client import Session
from bench.peers.floors import Floors
from bench.peers.samples import TTFT, Sample, cached, first_tokens
from bench.peers.workloads.contract import Floor, Workload

NEW = 48
"""Tokens of a second turn."""


class Cold(Workload):
    """Prompts that share nothing."""

    name = "cold"
    title = "Cold prefill"

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        samples = []
        for length in self.lengths:
            reply = await session.ask(session.prompts.draw(length, self.name, length, repeat), 1)
            samples += first_tokens(_tokens(length), [reply])
        return samples

    def floor(self, floors: Floors) -> Floor:
        return {(_tokens(length), TTFT): floors.prefill(length) for length in self.lengths}


class SecondTurn(Workload):
    """A history that was computed before, and new tokens behind it, others in every repeat."""

    name = "second"
    title = f"Second turn: {NEW} new tokens over a history"

    def __init__(self, histories: tuple[int, ...]) -> None:
        self.histories = histories

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        samples = []
        for length in self.histories:
            history = session.prompts.draw(length, self.name, length)
            if repeat == 0:
                await session.ask(history, 1)
            new = session.prompts.draw(NEW, self.name, length, repeat)
            reply = await session.ask(history + new, 1, reusable=length)
            case = f"over {_tokens(length)}"
            samples += first_tokens(case, [reply]) + cached(case, [reply])
        return samples

    def floor(self, floors: Floors) -> Floor:
        return {(f"over {_tokens(length)}", TTFT): floors.prefill(NEW, length) for length in self.histories}


def _tokens(length: int) -> str:
    return f"{length:,} tokens"
