"""One client for all engines: token ids to /v1/completions, timed from outside, one connection a request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from bench.peers.launch import MODEL
from bench.peers.prompts import Prompts
from bench.peers.server import Server
from longturn.dialects.engines import ENGINES
from longturn.lab.wire import Limit, Reply, client, send

REQUEST_S = 180.0
"""The longest that one request may take."""


@dataclass
class Session:
    """What a workload sees of one engine; close it. ends_s: when the run's time is over, by time.perf_counter.

    replies: everything that was asked, answered or not.
    """

    server: Server
    prompts: Prompts
    ends_s: float
    replies: list[Reply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = client(self.server.url)

    async def close(self) -> None:
        await self.http.aclose()

    @property
    def engine(self) -> str:
        return self.server.engine

    async def ask(self, prompt: list[int], max_tokens: int, reusable: int = 0, reply: Reply | None = None) -> Reply:
        """Send one request; whatever the server does is in the reply, and nothing is raised for it.

        reusable: tokens of the prompt that the engine has seen before. reply: to be filled instead of a new one.
        """
        reply = reply or Reply({}, 0)
        reply.labels["reusable"], reply.sent_tokens = reusable, len(prompt)
        self.replies.append(reply)
        left_s = self.ends_s - time.perf_counter()
        over = left_s < REQUEST_S
        limit = Limit(max(left_s, 0.01) if over else REQUEST_S, "the run's time" if over else "a request's", cut=over)
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        await send(self.http, "/v1/completions", body, reply, time.perf_counter, limit)
        if reply.error is None:
            self._check(reply, max_tokens)
        return reply

    async def together(self, prompts: list[list[int]], max_tokens: int, at_once: int, reusable: int = 0) -> list[Reply]:
        """Send several, at most `at_once` at a time."""
        room = asyncio.Semaphore(at_once)

        async def one(prompt: list[int]) -> Reply:
            async with room:
                return await self.ask(prompt, max_tokens, reusable)

        return await asyncio.gather(*map(one, prompts))

    def _check(self, reply: Reply, max_tokens: int) -> None:
        """Figures count only if the engine took the prompt as it is and wrote as much as it was asked for."""
        if reply.prompt_tokens != reply.sent_tokens:
            reply.fail("miscounted", f"{reply.prompt_tokens} prompt tokens were counted of {reply.sent_tokens} sent")
        elif reply.output_tokens != max_tokens:
            reply.fail("short", f"{reply.output_tokens} of {max_tokens} tokens came: ignore_eos is not heeded")
        elif reply.cached_tokens is None and ENGINES[self.engine].silent_zero:
            reply.cached_tokens = 0
