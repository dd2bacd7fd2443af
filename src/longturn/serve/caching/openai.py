"""OpenAI's prompt caching, on the engine's real cache: what a request would read and write there, and what it pins.

Three regimes, by the name of the served model. `breakpoints`, from gpt-5.6 on: only prefixes that end where the request
names or implies it are read and written, exactly. `intervals`, OpenAI's models before: any prefix of whole 128 tokens,
from 1,024 on. `engine`, all others: what the engine has really found. The counts of the first two never exceed that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request

from longturn.cache import Hint, Tokens
from longturn.dialects.openai_caching import CacheOptions
from longturn.dialects.openai_usage import CacheCount
from longturn.dialects.segments import Prompt
from longturn.engine import Output
from longturn.errors import RequestError
from longturn.explain.limits import BY_MARKS_LIFE, KEPT_LONGER, LIVES, minimum
from longturn.serve.caching.entries import Entries, prefix_keys
from longturn.serve.caching.openai_diagnostics import Record
from longturn.serve.caching.remembered import Remembered

Regime = Literal["breakpoints", "intervals", "engine"]

REGIMES: tuple[tuple[str, Regime], ...] = (
    (r"gpt-(5\.([6-9]|\d\d)|[6-9])(\D|$)", "breakpoints"),
    (r"(gpt-\d|chatgpt-|o[134](-|$)|codex-|computer-use)", "intervals"),
    (r"", "engine"),
)
"""(beginning of the served model's name, its regime), first match counts."""
INTERVAL = 128
PAGE = 64
"""Tokens of the largest page of any policy: a hit that ends inside the page of a boundary is as good as one at it."""
WRITTEN = 4
"""Boundaries that one request writes."""
FIRST_READ, LAST_READ, IMPLIED_READ = 2, 50, 20
"""Explicit boundaries that are looked up, from the beginning and from the end, and earlier implied ones."""
LIFE_OF_MARKS = ("30m", "12h")


def regime_of(model: str) -> Regime:
    """The regime of a served model's name."""
    name = model.removeprefix("openai/")
    return next(regime for pattern, regime in REGIMES if re.match(pattern, name))


@dataclass(frozen=True)
class Boundary:
    """A segment at whose end a prefix may be read, and is written for `life` where that is given."""

    index: int
    life: str | None = None


def boundaries(prompt: Prompt, ttl: str | None) -> list[Boundary]:
    """Where a request may read and does write, in the prompt's order. ttl: of boundaries that name none.

    Raises RequestError for a boundary with a time to live that there is not.
    """
    explicit = [mark for mark in prompt.marks if not mark.automatic]
    implied = [mark for mark in prompt.marks if mark.automatic]
    for mark in explicit:
        if mark.ttl is not None and mark.ttl not in LIFE_OF_MARKS:
            raise RequestError(f"{mark.path}: ttl must be one of {', '.join(LIFE_OF_MARKS)}.", param=mark.path[2:])
    newest = implied[-1:]
    written = [*explicit[-(WRITTEN - len(newest)) :], *newest]
    heads = [mark for mark in implied[:1] if prompt.segments[mark.index].level == "system"]
    read = [*explicit[:FIRST_READ], *explicit[-LAST_READ:], *implied[-IMPLIED_READ - 1 :], *heads]
    lives = {mark.index: None for mark in read} | {mark.index: mark.ttl or ttl for mark in written}
    return [Boundary(index, lives[index]) for index in sorted(lives)]


class Plan:
    """What one prompt reads, writes and pins. hints: for the engine."""

    def __init__(
        self, hints: Sequence[Hint] = (), find: Callable[[int], CacheCount] | None = None, reusable: int = 0
    ) -> None:
        """find: given how many tokens the engine has found, what the provider counts, at which moment it also writes.

        None: it counts as the engine does. reusable: tokens of the longest prefix that it leaves to be read.
        """
        self.hints = hints
        self.reusable = reusable
        self._find = find
        self._counts: dict[int, CacheCount] = {}

    def see(self, index: int, output: Output) -> None:
        """Take an output of choice `index`. From the first one on what the prompt has written can be read."""
        if self._find is not None and output.cached is not None and index not in self._counts:
            self._counts[index] = self._find(sum(output.cached.values()))

    @property
    def count(self) -> CacheCount | None:
        """What the provider counts for all choices; None where it is what the engine does."""
        return None if self._find is None else sum(self._counts.values(), CacheCount(0))


class OpenAICache:
    """What OpenAI would have in its caches, and remember of requests. Safe for several threads."""

    def __init__(self, entries: Entries | None = None) -> None:
        self._entries = entries or Entries()
        self.records: Remembered[Record] = Remembered()

    def plan(
        self,
        prompt: Prompt,
        tokens: Tokens,
        ends: Mapping[Boundary, int],
        *,
        scope: str,
        retention: str | None,
    ) -> Plan:
        """What a request does. Nothing is changed until its first output.

        tokens: int32 [n]; ends: boundary -> tokens of the prefix that ends there; scope: whose prefixes they are;
        retention: as the request says.
        """
        regime, kept = regime_of(prompt.model), LIVES["24h"] if retention == "24h" else None
        least = 0 if regime == "engine" else minimum(prompt.provider, prompt.model)
        written = sorted((end, boundary.life) for boundary, end in ends.items() if boundary.life and end >= least)
        lives = {end: life for end, life in written if life}
        hints = [Hint("pin", tokens, stop=end, seconds=LIVES[life]) for end, life in lives.items()]
        if kept is not None:
            hints.append(Hint("pin", tokens, seconds=kept))
        if regime == "engine":
            return Plan(hints, reusable=len(tokens))
        if regime == "intervals":
            lengths = list(range(least, len(tokens) + 1, INTERVAL))
            keys = dict(zip(lengths, prefix_keys(scope, tokens, lengths), strict=True))
            longest = LIVES["24h" if KEPT_LONGER.search(prompt.model) and retention is None else "in_memory"]
            return Plan(hints, lambda real: self._whole(keys, real, kept or longest), max(lengths, default=0))
        settings = {name: setting.value for name, setting in prompt.settings.items() if name != "tool_choice"}
        scope = json.dumps([scope, prompt.cache_key, settings], sort_keys=True)
        lengths = sorted({end for end in ends.values() if end >= least})
        keys = dict(zip(lengths, prefix_keys(scope, tokens, lengths), strict=True))
        return Plan(hints, lambda real: self._exact(keys, lives, real), max(lives, default=0))

    def _whole(self, keys: Mapping[int, bytes], real: int, life: float) -> CacheCount:
        read = max((n for n, key in keys.items() if n <= real and self._entries.find(key)), default=0)
        for length, key in keys.items():
            self._entries.write(key, length, life)
        return CacheCount(read)

    def _exact(self, keys: Mapping[int, bytes], lives: Mapping[int, str], real: int) -> CacheCount:
        found = max((n for n, key in keys.items() if n < real + PAGE and self._entries.find(key)), default=0)
        if found:
            self._entries.use(keys[found])
        # Never more than the engine has really spared.
        read = start = min(found, real)
        by_life = dict.fromkeys(LIFE_OF_MARKS, 0)
        for end, life in lives.items():
            self._entries.write(keys[end], end, LIVES[life])
            if end > found:
                by_life[life] += end - start
                start = end
        return CacheCount(read, sum(by_life.values()), by_life)


def applied(model: str, options: CacheOptions | None) -> dict[str, str] | None:
    """The options that are in force, as answers repeat them; None where the model has none and none were given."""
    if options is None and regime_of(model) != "breakpoints":
        return None
    options = options or CacheOptions()
    shown = {"mode": options.mode or "implicit", "ttl": options.ttl or BY_MARKS_LIFE}
    if options.comparison_response_id is not None:
        shown["comparison_response_id"] = options.comparison_response_id
    return shown


def checked(prompt: Prompt, options: CacheOptions | None) -> list[Boundary]:
    """The boundaries that count for the served model. Raises RequestError for what only later models know."""
    regime = regime_of(prompt.model)
    explicit = [mark for mark in prompt.marks if not mark.automatic]
    ttl = options.ttl if options else None
    if regime == "intervals" and (options is not None or explicit):
        param = "prompt_cache_options" if options is not None else explicit[0].path[2:]
        message = f"{param} is for gpt-5.6 and later: {prompt.model} has prompt_cache_retention instead."
        raise RequestError(message, param=param, code="unsupported_parameter")
    if regime == "breakpoints":
        return boundaries(prompt, ttl or BY_MARKS_LIFE)
    # Whoever asks for a life gets it, whatever the model is called.
    return boundaries(prompt, ttl or BY_MARKS_LIFE) if ttl or explicit else []


async def _of(request: Request) -> OpenAICache:
    cache: OpenAICache = request.app.state.openai_cache
    return cache


CacheOf = Annotated[OpenAICache, Depends(_of)]
"""The cache that the server keeps for OpenAI's clients."""
