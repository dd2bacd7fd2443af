"""Anthropic's prompt caching over the engine's own cache: marks, lookback, lives, and what counts as read or written.

The engine reuses whatever prefix it has; these rules say which part of that the provider would have served from its
cache. Nothing is reported as read that the engine has not really taken from its cache. Rules: Anthropic's guide to
prompt caching.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from longturn.cache import Hint, Tokens
from longturn.dialects.anthropic_usage import Cached
from longturn.dialects.segments import LEVELS, Level, Mark, Prompt
from longturn.errors import RequestError
from longturn.explain import limits
from longturn.serve.caching.entries import Entries, prefix_keys

SHORT, LONG = "5m", "1h"
RUNS = ("tool_use", "tool_result")
"""Kinds of which neighbours are one position of the lookback."""


def check_marks(prompt: Prompt, automatic: str | None) -> None:
    """Raises RequestError for marks that the provider refuses. automatic: ttl of the request's own cache_control."""
    marks = prompt.marks
    for mark in marks:
        if prompt.segments[mark.index].kind == "thinking":
            raise _refused("cache_control cannot be set on thinking blocks: mark the block after it.", mark)
    if len(marks) > limits.MARKS:
        raise RequestError(
            f"A maximum of {limits.MARKS} blocks with cache_control may be provided. Found {len(marks)}.",
            param="cache_control",
        )
    for earlier, later in pairwise(marks):
        if ttl_of(earlier) == SHORT and ttl_of(later) == LONG:
            raise _refused("a block with ttl 1h must not come after one with ttl 5m: reorder them.", later)
    if automatic and marks and not any(mark.automatic for mark in marks) and ttl_of(marks[-1]) != automatic:
        raise _refused("the last block is marked with another ttl than the request: make both the same.", marks[-1])


def ttl_of(mark: Mark) -> str:
    """How long a mark keeps its prefix."""
    return mark.ttl or SHORT


def _refused(message: str, mark: Mark) -> RequestError:
    path = mark.path.removeprefix("$.")
    return RequestError(f"{path}: {message}", param=path)


class CachedPrompt:
    """One request's prompt as prompt caching sees it.

    ends: for each segment the tokens up to its end, ascending; salt: the client's. Entries are looked up and written;
    keys of prefixes are over their tokens and the settings of their level, so that another `tool_choice` loses the
    messages' entries and keeps those of tools and system.
    """

    def __init__(self, prompt: Prompt, tokens: Tokens, ends: Sequence[int], entries: Entries, salt: str = "") -> None:
        self._prompt, self._tokens, self._ends, self._entries, self._salt = prompt, tokens, ends, entries, salt
        least = limits.minimum("anthropic", prompt.model)
        # A shorter prefix is left uncached in silence.
        self._marks = [mark for mark in prompt.marks if ends[mark.index] >= least]

    @property
    def hints(self) -> list[Hint]:
        """What the engine's cache shall keep, and for how long: all that is marked, and what is found."""
        kept = [(self._ends[mark.index], limits.LIVES[ttl_of(mark)]) for mark in self._marks]
        hit = self._hit(len(self._tokens))
        if hit is not None and (entry := self._entries.find(self._keys[hit])):
            kept.append((entry.tokens, entry.life))
        # Marks of tools and system may end together, with a life each.
        lives: dict[int, float] = {}
        for stop, life in kept:
            lives[stop] = max(life, lives.get(stop, 0.0))
        return [Hint("pin", self._tokens, stop=stop, seconds=life) for stop, life in lives.items()]

    def began(self, reused: int) -> Cached:
        """The answer begins, and `reused` tokens of its prompt came from the engine's cache: what counts as what.

        Entries are written, and readable from now on; what was hit lives on. Billing positions: A is the longest hit, B
        the last mark behind it that keeps for an hour, C the last mark of all.
        """
        hit = self._hit(reused)
        a = 0 if hit is None else self._ends[hit]
        if hit is not None:
            self._entries.use(self._keys[hit])
        for mark in self._marks:
            key, end = self._keys[mark.index], self._ends[mark.index]
            if end > a:
                self._entries.write(key, end, limits.LIVES[ttl_of(mark)])
            else:
                self._entries.use(key)
        b = max([a, *(self._ends[mark.index] for mark in self._marks if ttl_of(mark) == LONG)])
        c = max([b, *(self._ends[mark.index] for mark in self._marks)])
        return Cached(read=a, written_5m=c - b, written_1h=b - a)

    def _hit(self, reused: int) -> int | None:
        """The segment where the longest entry ends that is within reach of a mark and within `reused` tokens."""
        for mark in reversed(self._marks):
            reach = self._positions[mark.index] - limits.LOOKBACK
            for segment in range(mark.index, -1, -1):
                if self._positions[segment] <= reach:
                    break
                if self._ends[segment] <= reused and self._entries.find(self._keys[segment]) is not None:
                    return segment
        return None

    @cached_property
    def _positions(self) -> list[int]:
        """The position of each segment. A run of calls is one, and so is a run of results."""
        kinds = [segment.kind for segment in self._prompt.segments]
        new = [not (kind == before and kind in RUNS) for before, kind in zip(["", *kinds], kinds, strict=False)]
        return list(accumulate(new))

    @cached_property
    def _keys(self) -> list[bytes]:
        keys: list[bytes] = []
        for level in LEVELS:
            ends = [
                end for segment, end in zip(self._prompt.segments, self._ends, strict=True) if segment.level == level
            ]
            keys += prefix_keys(self._scope(level), self._tokens, ends)
        return keys

    def _scope(self, level: Level) -> str:
        """What sets apart entries of that level: all settings of it and of those before it."""
        depth = LEVELS.index(level)
        settings = {
            name: setting.value
            for name, setting in self._prompt.settings.items()
            if LEVELS.index(setting.level) <= depth
        }
        return json.dumps(["anthropic", self._salt, level, self._prompt.model, settings], sort_keys=True)
