"""A request while it is in the engine: its tokens so far, what is computed of them, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from longturn.cache import Allocation, Tokens
from longturn.engine.constraint import Constraint
from longturn.engine.detokenizer import StopMatcher, StreamDetokenizer
from longturn.engine.request import Output, Request
from longturn.engine.runner.contract import Passage
from longturn.engine.sampling import Sampled, SampleState
from longturn.explain.miss import Miss
from longturn.ledger import RequestLine, Resources, TokenUse

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Prompt tokens before the output that the detokeniser looks at, so that a word's first piece is rendered rightly.
_PROMPT_TAIL = 8


@dataclass(eq=False)
class Cost:
    """What a request has taken so far, in the units of `ledger.Resources`."""

    flops: float = 0.0
    device_seconds: float = 0.0
    byte_seconds: float = 0.0
    cpu_seconds: float = 0.0
    transfer_bytes: dict[str, int] = field(default_factory=dict)


class Sequence:
    """The state of one request.

    `computed` counts the tokens whose KV is in the pool, None until pages have landed; `passage` are those after them,
    if they have got through some of the layers.
    """

    def __init__(
        self,
        request: Request,
        model: str,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: tuple[int, ...],
        max_length: int,
        clock: Callable[[], float] = time.monotonic,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self._clock = clock
        self.model = model
        self.eos_ids = eos_ids
        self.n_prompt = len(request.tokens)
        limit = request.params.max_tokens
        self.max_length = max_length if limit is None else min(max_length, self.n_prompt + limit)
        self.state = SampleState(request.params, request.tokens, eos_ids, constraint=constraint)
        self.allocation: Allocation | None = None
        self.computed: int | None = None
        self.passage: Passage | None = None
        self.cached: dict[str, int] | None = None
        self.miss: Miss | None = None
        self.fetched = False
        self.estimate = self.n_prompt
        self.cost = Cost()
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self._buffer = np.empty(self.n_prompt + 64, dtype=np.int32)
        self._buffer[: self.n_prompt] = request.tokens
        self.length = self.n_prompt
        self._detokenizer = StreamDetokenizer(tokenizer, request.tokens[-_PROMPT_TAIL:].tolist())
        self._stops = StopMatcher(request.params.stop)

    @property
    def tokens(self) -> Tokens:
        """Prompt and output so far, int32 [length]; a view."""
        return self._buffer[: self.length]

    @property
    def output_length(self) -> int:
        """Tokens generated so far."""
        return self.length - self.n_prompt

    @property
    def remaining(self) -> int:
        """Tokens whose KV is missing; 1 while decoding."""
        return self.length - (self.computed or 0)

    def append(self, sample: Sampled) -> Output:
        """Take a new token (mutates the sequence); the output says if it was the last one."""
        token, params = sample.token, self.request.params
        if self.first_token_at is None:
            self.first_token_at = self._clock()
        if self.length == len(self._buffer):
            self._buffer = np.concatenate((self._buffer, np.empty(len(self._buffer), dtype=np.int32)))
        self._buffer[self.length] = token
        self.length += 1
        self.state.output_ids.append(token)
        reason: str | None = None
        stop: str | int | None = None
        text, stopped = "", False
        enough = self.output_length >= params.min_tokens
        if token in params.stop_token_ids and enough:
            reason, stop = "stop", token
        elif token in self.eos_ids and not params.ignore_eos and enough:
            reason = "stop"
        else:
            if self.state.constraint is not None and self.state.constraint.advance(token):
                reason = "stop"
            elif self.length >= self.max_length:
                reason = "length"
            text, stopped = self._stops.push(self._detokenizer.push([token]))
        if reason and not stopped:
            more, stopped = self._stops.push(self._detokenizer.finish())
            text += more
        if stopped:
            reason, stop = "stop", self._stops.matched
        elif reason:
            text += self._stops.finish()
        return Output(
            self.request.id,
            text,
            (token,),
            (sample,),
            reason,
            stop,
            line=self.line(reason) if reason else None,
            cached=self.cached or {},
        )

    def ended(self, reason: str, error: Exception | None = None) -> Output:
        """The last output of a request that ends without a token."""
        return Output(self.request.id, "", (), finish_reason=reason, error=error, line=self.line(reason))

    def line(self, reason: str) -> RequestLine:
        """The ledger's line of the request as it stands; of one that ended before its prompt was computed, as far as
        that got."""
        now, request = self._clock(), self.request
        cached = self.cached or {}
        logical = self.n_prompt if self.output_length else min(self.computed or 0, self.n_prompt)
        logical = max(logical, sum(cached.values()))
        cost = self.cost
        return RequestLine(
            request.id,
            request.session,
            self.model,
            request.arrived_at,
            TokenUse(logical, cached, logical - sum(cached.values()), output=self.output_length),
            Resources(
                device_flops=cost.flops,
                device_seconds=cost.device_seconds,
                device_byte_seconds=cost.byte_seconds,
                transfer_bytes=cost.transfer_bytes,
                cpu_seconds=cost.cpu_seconds,
            ),
            ttft_ms=_since(request.arrived, self.first_token_at),
            total_ms=(now - request.arrived) * 1e3,
            queue_ms=_since(request.arrived, self.admitted_at),
            finish_reason=reason,
            miss=None if self.miss is None else str(self.miss),
        )


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else (end - start) * 1e3
