"""What is sent: the requests of a trace with synthetic content, scaled to a server's window.

Content is made from the trace's ids and a seed alone: equal where the trace's blocks are equal, and nothing of the
trace's own. Every word or token id stands for one token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import xxhash

from longturn.lab.trace import Trace, TraceRequest
from longturn.lab.trace.form import Ids


@dataclass(frozen=True, slots=True)
class Call:
    """One request to send. ids: int64 [P], a token id each; output: ids of the trace's answer, where later prompts
    repeat it token by token, else None; time, think: seconds, as in a trace."""

    index: int
    id: str
    session: str
    time: float
    think: float | None
    ids: Ids
    output: Ids | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The calls, in the trace's order. scale: tokens sent for each token of the trace; notes: premises, for people."""

    calls: list[Call]
    scale: float
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Grain:
    """How blocks become tokens: each is `per_block` of them, or `group` of them are one."""

    unit: int
    per_block: int
    group: int

    @classmethod
    def of(cls, unit: int, scale: float) -> Grain:
        """The finest that sends at most `scale` tokens for each token of the trace, up to 1."""
        per_block = min(unit, math.floor(unit * scale + 1e-9))
        return cls(unit, per_block, 1) if per_block else cls(unit, 1, math.ceil(1 / (unit * scale) - 1e-9))

    @property
    def scale(self) -> float:
        """Tokens sent for each token of the trace."""
        return self.per_block / (self.unit * self.group)


def prepare(
    trace: Trace, *, requests: int, room: int | None, scale: float | None, answer: int | None, vocab: int, seed: int
) -> Workload:
    """The first `requests` of `trace` as calls.

    room: tokens that the longest prompt and its answer may take, None if unknown; scale: tokens sent for each token of
    the trace (default: as many as fit, at most 1); answer: longest answer in tokens; vocab: token ids are below it. The
    same seed gives the same content.
    """
    taken = list(islice(trace, requests))
    if scale is None:
        longest = max(
            (one.prompt_tokens + min(one.output_tokens, answer or one.output_tokens) for one in taken), default=1
        )
        # The last block and the answer round up.
        scale = 1.0 if room is None else min(1.0, max(room - 4, 1) / longest)
    grain = Grain.of(trace.unit, scale)
    exact = grain.scale == trace.unit == 1
    calls = [_call(index, one, grain, exact, answer, vocab, seed) for index, one in enumerate(taken)]
    notes = list(trace.notes)
    if grain.scale < 1:
        notes.append(f"one token is sent for {1 / grain.scale:g} of the trace")
    if room is None:
        notes.append("the server does not tell its window: nothing was scaled to it (--window, --scale)")
    return Workload(calls, grain.scale, notes)


def _call(
    index: int, request: TraceRequest, grain: Grain, exact: bool, answer: int | None, vocab: int, seed: int
) -> Call:
    key = xxhash.xxh3_64_intdigest(request.salt.encode(), seed=seed & (1 << 64) - 1)
    # A prompt shorter than a block has none in some traces: it is like no other then.
    blocks = request.prompt.ids() if len(request.prompt) else np.array([-1 - index], dtype=np.int64)
    output_tokens = max(1, int(request.output_tokens * grain.scale))
    kept = exact and request.output is not None and (answer is None or request.output_tokens <= answer)
    return Call(
        index=index,
        id=request.id,
        session=request.session,
        time=request.time,
        think=request.think,
        ids=content(blocks, request.prompt_tokens, grain, key, vocab),
        output=content(request.output.ids(), request.output_tokens, grain, key, vocab)
        if kept and request.output is not None
        else None,
        output_tokens=min(output_tokens, answer or output_tokens),
    )


def content(blocks: Ids, tokens: int, grain: Grain, key: int, vocab: int) -> Ids:
    """Token ids, int64 [n], for `blocks` that hold `tokens` of the trace, the last block perhaps in part."""
    low = vocab // 32  # the first ids are special tokens and single bytes in many vocabularies
    mixed = _mix(blocks.astype(np.uint64) ^ np.uint64(key))
    if grain.group > 1:
        columns = np.concatenate((mixed, np.zeros(-len(mixed) % grain.group, np.uint64))).reshape(-1, grain.group)
        mixed = columns[:, 0]
        for column in columns.T[1:]:
            mixed = _mix(mixed ^ column)
    elif grain.per_block > 1:
        mixed = _mix(mixed[:, None] ^ np.arange(grain.per_block, dtype=np.uint64)).reshape(-1)
        inside = min(max(tokens - grain.unit * (len(blocks) - 1), 1), grain.unit)
        mixed = mixed[: grain.per_block * (len(blocks) - 1) + math.ceil(inside * grain.scale)]
    return (low + mixed % np.uint64(vocab - low)).astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit given."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
