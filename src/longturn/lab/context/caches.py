"""The prefix caches of providers, by the rules that they publish, and the ideal one of an engine of one's own.

Nothing is ever evicted for want of room; entries end when they were not used for their time to live. An entry lives
from the end of the answer that wrote or read it, as recordings of real sessions show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from longturn.lab.context.prompts import Prompt
from longturn.ledger import TokenUse

LOOKBACK = 20
"""Positions that Anthropic looks back from a breakpoint, which is the first of them; also OpenAI's message ends."""
MARKS = 4
"""Breakpoints that one request may have."""


class PrefixCache(Protocol):
    """A provider's cache over a whole replay: requests come in the order of their times."""

    def serve(self, prompt: Prompt, start: float, end: float, ttl: float) -> TokenUse:
        """What of a prompt is cached, and what it leaves behind. start, end: seconds, of the request and its answer;
        ttl: seconds, of what the client asks for, where it may ask."""

    def keep(self, prompt: Prompt, items: int) -> None:
        """Others keep this prompt's first items cached."""


@dataclass(slots=True)
class Entries:
    """Prefixes that are cached, and until when."""

    until: dict[int, float] = field(default_factory=dict)

    def live(self, node: int, now: float) -> bool:
        """Whether a prefix is cached."""
        return self.until.get(node, -math.inf) >= now

    def touch(self, node: int, until: float) -> None:
        """Write it, or make it live on."""
        self.until[node] = max(until, self.until.get(node, until))


@dataclass(slots=True)
class Marked:
    """Anthropic: entries are written only at breakpoints, and found from a breakpoint within 20 positions back.

    The client sets breakpoints behind what all sessions share and behind the whole head, and behind the latest two runs
    of user messages or tool results. A run of calls, or of results, is one position. minimum: shortest prefix in tokens
    that is cached.
    """

    minimum: int
    entries: Entries = field(default_factory=Entries)

    def serve(self, prompt: Prompt, start: float, end: float, ttl: float) -> TokenUse:
        marks = self._marks(prompt)
        hit = next((place for mark in reversed(marks) for place in self._found(prompt, mark, start)), None)
        cached = 0 if hit is None else prompt.ends[hit]
        if hit is not None:
            self.entries.touch(prompt.nodes[hit], end + ttl)
        written = 0
        for mark in marks:
            if prompt.ends[mark] < self.minimum:
                continue
            if prompt.ends[mark] > cached:
                written = prompt.ends[mark] - cached
                self.entries.touch(prompt.nodes[mark], end + ttl)
            elif self.entries.live(prompt.nodes[mark], start):
                self.entries.touch(prompt.nodes[mark], end + ttl)
        return _use(prompt, cached, written)

    def keep(self, prompt: Prompt, items: int) -> None:
        self.entries.touch(prompt.nodes[items - 1], math.inf)

    def _marks(self, prompt: Prompt) -> list[int]:
        said = [place for place in prompt.said_until() if place >= prompt.head]
        head = range(prompt.head)[-2:]
        return sorted({*head, *said[-(MARKS - len(head)) :]})

    def _found(self, prompt: Prompt, mark: int, now: float) -> list[int]:
        """The deepest live entry that a breakpoint finds, if any."""
        positions, place = 0, mark
        while place >= 0 and positions < LOOKBACK:
            if self.entries.live(prompt.nodes[place], now):
                return [place]
            kind = prompt.items[place].kind
            place -= 1
            run = place >= 0 and kind in ("call", "result") and prompt.items[place].kind == kind
            positions += not run
        return []


@dataclass(slots=True)
class MessageEnds:
    """OpenAI from gpt-5.6 on, implicit mode: prefixes that end with the latest message that is no answer are written,
    and found at the ends of that one, of 20 such before it and of the head."""

    minimum: int
    life: float
    entries: Entries = field(default_factory=Entries)

    def serve(self, prompt: Prompt, start: float, end: float, ttl: float) -> TokenUse:
        ends = prompt.said_until()[-LOOKBACK - 1 :]
        places = sorted({prompt.head - 1, *ends} - {-1})
        hit = next((place for place in reversed(places) if self.entries.live(prompt.nodes[place], start)), None)
        cached = 0 if hit is None else prompt.ends[hit]
        if hit is not None:
            self.entries.touch(prompt.nodes[hit], end + self.life)
        last = prompt.ends[places[-1]] if places else 0
        if last < self.minimum or last <= cached:
            return _use(prompt, cached, 0)
        self.entries.touch(prompt.nodes[places[-1]], end + self.life)
        return _use(prompt, cached, last - cached)

    def keep(self, prompt: Prompt, items: int) -> None:
        self.entries.touch(prompt.nodes[items - 1], math.inf)


@dataclass(slots=True)
class Automatic:
    """Whatever prefix was sent before is cached, and nothing is charged for that.

    OpenAI before gpt-5.6: `step` of 128 tokens, life of hours; Gemini's implicit caching: no step published; an engine
    of one's own with room for all: step of 1, for ever. minimum: shortest hit in tokens; life: seconds; tier: of the
    ledger, where hits come from. The last token of a prompt is always computed.
    """

    minimum: int
    step: int
    life: float
    tier: str = "provider"
    entries: Entries = field(default_factory=Entries)

    def serve(self, prompt: Prompt, start: float, end: float, ttl: float) -> TokenUse:
        shared = 0
        for node, tokens in zip(prompt.nodes, prompt.ends, strict=True):
            if not self.entries.live(node, start):
                break
            shared = tokens
        cached = min(shared, max(prompt.tokens - 1, 0)) // self.step * self.step
        for node in prompt.nodes:
            self.entries.touch(node, end + self.life)
        return _use(prompt, cached if cached >= self.minimum else 0, 0, self.tier)

    def keep(self, prompt: Prompt, items: int) -> None:
        for node in prompt.nodes[:items]:
            self.entries.touch(node, math.inf)


def _use(prompt: Prompt, cached: int, written: int, tier: str = "provider") -> TokenUse:
    return TokenUse(logical=prompt.tokens, cached={tier: cached}, computed=prompt.tokens - cached, written=written)
