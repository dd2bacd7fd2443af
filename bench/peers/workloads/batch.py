"""Several streams at once: how fast they are together, and how a long prompt disturbs them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from bench.peers import overhead
from bench.peers.client import Session
from bench.peers.floors import Floors
from bench.peers.samples import (
    BUSY_GAP,
    BUSY_GAP_MAX,
    BUSY_GAP_P99,
    BUSY_OVER_IDLE,
    IDLE_GAP,
    RATE,
    TTFT,
    Sample,
    first_tokens,
    percentile,
)
from bench.peers.workloads.contract import Floor, Workload
from longturn.lab.wire import Reply

IDLE_TOKENS = 24
"""Tokens that each stream brings before the long prompt is sent."""
STREAM_TOKENS = 1500


class Decode(Workload):
    """Streams that start together over contexts that are cached from the first repeat on."""

    name = "decode"
    title = "Decode: tokens per second of all streams"

    def __init__(self, batches: tuple[int, ...], context: int, tokens: int) -> None:
        self.batches, self.context, self.tokens = batches, context, tokens

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        contexts = [session.prompts.draw(self.context, self.name, stream) for stream in range(max(self.batches))]
        if repeat == 0:
            await session.together(contexts, 1, at_once=1)
        samples = []
        for batch in self.batches:
            before = await overhead.read(session.http)
            replies = await session.together(contexts[:batch], self.tokens, at_once=batch, reusable=self.context)
            after = await overhead.read(session.http)
            if before and after:
                samples.append(Sample(_batch(batch), overhead.SHARE, after.share_since(before)))
            if (rate := tokens_per_s(replies)) is not None:
                samples.append(Sample(_batch(batch), RATE, rate))
        return samples

    def floor(self, floors: Floors) -> Floor:
        middle = self.context + self.tokens // 2
        return {(_batch(batch), RATE): floors.decode(batch, middle) for batch in self.batches}


class Mixed(Workload):
    """While streams are running a long prompt arrives; the time between their tokens is watched until its first one."""

    name = "mixed"
    title = "Running streams while a long prompt is computed"

    def __init__(self, streams: int, prompt: int) -> None:
        self.streams, self.prompt = streams, prompt

    async def run(self, session: Session, repeat: int) -> list[Sample]:
        draw = session.prompts.draw
        running = [Reply({}, 0) for _ in range(self.streams)]
        tasks = [
            asyncio.create_task(session.ask(draw(256, self.name, repeat, stream), STREAM_TOKENS, reply=reply))
            for stream, reply in enumerate(running)
        ]
        try:
            while min(len(reply.arrivals_s) for reply in running) < IDLE_TOKENS:
                if any(task.done() for task in tasks):
                    return []
                await asyncio.sleep(0.05)
            long = await session.ask(draw(self.prompt, self.name, repeat, "long"), 1)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [] if long.error else self._samples(running, long)

    def _samples(self, running: list[Reply], long: Reply) -> list[Sample]:
        case = f"{self.streams} streams, prompt of {self.prompt:,}"
        # Before the last stream has begun, prompts of others are computed in between.
        begun, sent, answered = max(reply.arrivals_s[0] for reply in running), long.started_s, long.arrivals_s[0]
        idle, busy = [], []
        for reply in running:
            for earlier, later in pairwise(reply.arrivals_s):
                if begun <= earlier and later <= sent:
                    idle.append(later - earlier)
                elif later > sent and earlier < answered:
                    busy.append(later - earlier)
        if not (idle and busy):
            return []
        middle, slow = percentile(idle, 50), percentile(busy, 99)
        samples = [Sample(case, IDLE_GAP, gap) for gap in idle] + [Sample(case, BUSY_GAP, gap) for gap in busy]
        samples += [Sample(case, BUSY_GAP_P99, slow), Sample(case, BUSY_GAP_MAX, max(busy))]
        return [
            *samples,
            Sample(case, BUSY_OVER_IDLE, slow / middle),
            *first_tokens(f"the prompt of {self.prompt:,}", [long]),
        ]

    def floor(self, floors: Floors) -> Floor:
        return {(f"the prompt of {self.prompt:,}", TTFT): floors.prefill(self.prompt)}


def tokens_per_s(streams: list[Reply]) -> float | None:
    """Output tokens of all streams, from the first token of the last to start until the end of the first to end.

    None if any has failed, or there is no such time. A server may put several tokens in a chunk: chunks are scaled to
    the tokens that it reports.
    """
    if any(stream.error for stream in streams):
        return None
    start = max(stream.arrivals_s[0] for stream in streams)
    end = min(stream.arrivals_s[-1] for stream in streams)
    tokens = 0.0
    for stream in streams:
        inside = sum(start < arrival <= end for arrival in stream.arrivals_s)
        tokens += inside * (stream.output_tokens or 0) / len(stream.arrivals_s)
    return tokens / (end - start) if end > start and tokens else None


def _batch(batch: int) -> str:
    return f"batch {batch}"
