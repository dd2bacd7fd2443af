"""A synthetic trace of conversations, with a knob for everything that decides how much of it can be cached."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isfinite

import numpy as np

from longturn.errors import ConfigError
from longturn.lab.trace.form import NO_BLOCKS, Blocks, Ids, TraceRequest

VOCABULARY = 32_000
"""Token ids lie below, so that every common model has them."""

TOKENS_PER_SECOND = 50.0
"""How fast answers come in the clock of the trace."""

SUMMARY_SHARE = 1 / 8
"""Of the window, for the summary that takes a history's place."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The knobs. Lengths and times are means of geometric and exponential distributions, except where it says exact.

    sessions: how many (exact); turns: of a session; system_tokens: of the system prompt (exact); sharing: the share of
    sessions whose system prompt is one of `system_prompts` common ones, the others have their own; user_tokens,
    output_tokens: of a message and an answer; think: seconds before a follow-up; rate: sessions that begin per second;
    branching: the probability that a turn takes an earlier message's place; retries: that an answer is asked for once
    more; compaction: the window in tokens which, when full, has the history replaced by a summary (0: never); unit:
    tokens per block (exact).
    """

    sessions: int = 100
    turns: float = 8.0
    system_tokens: int = 1000
    sharing: float = 1.0
    system_prompts: int = 1
    user_tokens: float = 100.0
    output_tokens: float = 200.0
    think: float = 30.0
    rate: float = 0.5
    branching: float = 0.0
    retries: float = 0.0
    compaction: int = 0
    seed: int = 0
    unit: int = 1

    def __post_init__(self) -> None:
        limits = {
            **dict.fromkeys(("sessions", "turns", "system_prompts", "user_tokens", "output_tokens", "unit"), (1, None)),
            **dict.fromkeys(("system_tokens", "think", "compaction", "seed"), (0, None)),
            **dict.fromkeys(("sharing", "branching"), (0, 1)),
            "retries": (0, 0.99),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not isfinite(value) or value < low or (high is not None and value > high):
                upper = "" if high is None else f" and at most {high}"
                raise ConfigError(f"A workload with {name}={value} is not possible: give at least {low}{upper}.")
        if not (isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f"A workload with rate={self.rate} is not possible: give a number above 0.")
        if self.compaction and self.compaction <= self.system_tokens:
            raise ConfigError(
                f"A window of {self.compaction} tokens has no room beside {self.system_tokens} system tokens: raise "
                "compaction or lower system_tokens."
            )


class Generated:
    """The trace of a workload; implements `Trace`. Made anew in every pass, always the same; only sessions that have
    begun and not ended are in memory."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.name, self.unit = "generated", workload.unit
        changed = {field.name: getattr(workload, field.name) for field in fields(workload)}
        knobs = ", ".join(f"{name}={value}" for name, value in changed.items())
        self.notes = [f"Made from {knobs}.", f"Answers come at {TOKENS_PER_SECOND:g} tokens per second."]

    def __iter__(self) -> Iterator[TraceRequest]:
        workload, ids = self.workload, _FreshIds()
        random = np.random.default_rng(workload.seed)
        n_system = workload.system_tokens // workload.unit
        common = [ids.take(n_system) for _ in range(workload.system_prompts)]
        due: list[tuple[float, int, TraceRequest, Iterator[TraceRequest]]] = []
        start = 0.0
        for place in range(workload.sessions):
            start += random.exponential(1 / workload.rate)
            yield from _until(start, due)
            session = _Session(workload, place, start, ids, common).requests()
            first = next(session)
            heapq.heappush(due, (first.time, place, first, session))
        yield from _until(float("inf"), due)


def _until(time: float, due: list[tuple[float, int, TraceRequest, Iterator[TraceRequest]]]) -> Iterator[TraceRequest]:
    """Requests of the running sessions that come before `time`."""
    while due and due[0][0] <= time:
        _, place, request, session = heapq.heappop(due)
        yield request
        if (following := next(session, None)) is not None:
            heapq.heappush(due, (following.time, place, following, session))


class _FreshIds:
    """Ids that were not given out before."""

    def __init__(self) -> None:
        self._free = 0

    def take(self, n_ids: int) -> Blocks:
        first, self._free = self._free, self._free + n_ids
        return Blocks.runs([first], [n_ids]) if n_ids else NO_BLOCKS


class _Session:
    """One conversation. `_blocks` are the whole blocks of its history, `_length` the tokens of it."""

    def __init__(self, workload: Workload, place: int, start: float, ids: _FreshIds, common: list[Blocks]) -> None:
        self._workload, self._place, self._time, self._ids = workload, place, start, ids
        self._random = np.random.default_rng((workload.seed, place))
        shares = self._random.random() < workload.sharing
        n_system = workload.system_tokens // workload.unit
        self._blocks = common[self._random.integers(len(common))] if shares else ids.take(n_system)
        self._length = workload.system_tokens
        self._messages: list[int] = []  # where the user's messages begin
        self._think: float | None = None
        self._n_requests = 0

    def requests(self) -> Iterator[TraceRequest]:
        workload, random = self._workload, self._random
        for turn in range(self._mean(workload.turns)):
            if turn and random.random() < workload.branching:
                edited = int(random.integers(len(self._messages)))
                self._cut(self._messages[edited])
                del self._messages[edited:]
            n_user, n_output = self._mean(workload.user_tokens), self._mean(workload.output_tokens)
            if self._messages and 0 < workload.compaction < self._length + n_user + n_output:
                self._cut(workload.system_tokens)
                self._grow(max(1, round(workload.compaction * SUMMARY_SHARE)))
                self._messages.clear()
            self._messages.append(self._length)
            self._grow(n_user)
            yield self._ask(n_output)
            while random.random() < workload.retries:
                self._cut(self._length - n_output)
                n_output = self._mean(workload.output_tokens)
                yield self._ask(n_output)

    def _ask(self, n_output: int) -> TraceRequest:
        unit, n_prompt, whole = self._workload.unit, self._length, self._blocks
        prompt = Blocks.join(whole, self._ids.take(1)) if n_prompt % unit else whole
        self._grow(n_output)
        self._n_requests += 1
        request = TraceRequest(
            id=f"{self._place}/{self._n_requests}",
            session=str(self._place),
            time=self._time,
            prompt=self._shown(prompt),
            prompt_tokens=n_prompt,
            output_tokens=n_output,
            output=self._shown(self._blocks.part(len(whole), len(self._blocks))),
            think=self._think,
        )
        self._think = float(self._random.exponential(self._workload.think)) if self._workload.think else 0.0
        self._time += n_output / TOKENS_PER_SECOND + self._think
        return request

    def _grow(self, n_tokens: int) -> None:
        unit = self._workload.unit
        n_blocks = (self._length + n_tokens) // unit - self._length // unit
        self._blocks = Blocks.join(self._blocks, self._ids.take(n_blocks))
        self._length += n_tokens

    def _cut(self, length: int) -> None:
        self._blocks, self._length = self._blocks.part(0, length // self._workload.unit), length

    def _mean(self, mean: float) -> int:
        return int(self._random.geometric(1 / mean))

    def _shown(self, blocks: Blocks) -> Blocks:
        return Blocks(plain=_tokens(blocks.ids())) if self._workload.unit == 1 else blocks


def _tokens(ids: Ids) -> Ids:
    """Token ids that look random: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) over the ids."""
    mixed = ids.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(VOCABULARY)).astype(np.int64)
