"""What the loop asks of a runner. The torch runner computes; a modelled one lets a virtual clock pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from longturn.cache import Runs, Tokens
from longturn.engine.mover import DevicePool

Logits = Any
"""A tensor [n, vocab_size]; None of a runner that only says how long it would have taken."""


@dataclass(frozen=True, eq=False)
class Span:
    """Tokens of one request to compute in a step.

    tokens: int32 [n], at positions `start` to `start + n`; runs: the slots of positions 0 to `start + n` or more, of
    which the first `start` hold KV already; logits: whether the logits behind the last token are wanted; prompt: these
    are tokens of a prompt (only those may be several).
    """

    tokens: Tokens
    start: int
    runs: Runs
    logits: bool
    prompt: bool


@dataclass(frozen=True)
class ModelShape:
    """What scheduler and cache need to know of a model.

    context: most positions; linear_flops: FLOPs per token outside attention; attention_flops: per token and earlier
    token; token_bytes: KV per token; weight_bytes: all weights.
    """

    context: int
    vocab_size: int
    token_bytes: int
    weight_bytes: int
    linear_flops: float
    attention_flops: float


class Runner(Protocol):
    """Computes steps of a model over a device pool."""

    @property
    def shape(self) -> ModelShape:
        """The model's figures."""

    @property
    def pool(self) -> DevicePool:
        """The pool that spans address."""

    def execute(self, spans: Sequence[Span]) -> Logits:
        """Compute all spans in one step, writing their KV into the pool.

        Returns logits [number of spans that want them, vocab_size], in order.
        """
