"""How one request wants its tokens chosen. Checked once, here, so that the engine never meets a bad value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from longturn.dialects.grammar import Grammar
from longturn.errors import RequestError

MAX_STOPS = 16
MAX_LOGPROBS = 20


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one request.

    `max_tokens` None means up to the end of the context. `top_k` 0 or -1 means off. `logprobs` None means none, 0 the
    chosen token only, k the k most likely ones beside it. `presence_penalty` and `frequency_penalty` are OpenAI's (over
    the output), `repetition_penalty` is Hugging Face's (over prompt and output, 1.0 is off). `min_tokens` forbids the
    end of the answer before that many tokens. `grammar` is what the answer must fit: unless `max_tokens` or a stop
    string cuts it, it ends when it is complete, also with `ignore_eos`. Raises RequestError with `param` set to the
    offending field.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    min_tokens: int = 0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        _real("temperature", self.temperature, 0, 2)
        _whole("top_k", self.top_k, -1)
        _real("top_p", self.top_p, 0, 1, above=True)
        _real("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _real("presence_penalty", self.presence_penalty, -2, 2)
        _real("frequency_penalty", self.frequency_penalty, -2, 2)
        _real("repetition_penalty", self.repetition_penalty, 0, math.inf, above=True)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}): lower it.", param="min_tokens"
            )
        if self.min_tokens and self.grammar is not None:
            raise RequestError(
                f"min_tokens cannot be held together with {self.grammar.param}, which says when an answer is complete: "
                "leave one of them out.",
                param="min_tokens",
            )
        strings = isinstance(self.stop, tuple) and all(isinstance(stop, str) and stop for stop in self.stop)
        if not strings or len(self.stop) > MAX_STOPS:
            raise RequestError(
                f"stop takes up to {MAX_STOPS} strings (in Python a tuple), none of them empty.", param="stop"
            )
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0)
        for token, bias in self.logit_bias.items():
            _whole("logit_bias", token, 0)
            _real("logit_bias", bias, -100, 100)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken, so that no random number is needed."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def reshapes(self) -> bool:
        """Whether the logits are changed by anything but temperature and truncation."""
        return bool(
            self.grammar
            or self.logit_bias
            or self.min_tokens
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
        )


def _whole(name: str, value: int, low: int, high: int | None = None) -> None:
    if type(value) is not int or value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be a whole number, {limit} (got {value!r}).", param=name)


def _real(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
        or (above and value == low)
    ):
        limit = f"above {low:g}" if above else f"at least {low:g}"
        limit += f" and at most {high:g}" if math.isfinite(high) else ""
        raise RequestError(f"{name} must be a number {limit} (got {value!r}).", param=name)
