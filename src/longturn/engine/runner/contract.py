"""What the loop asks of a runner. The torch runner computes; a modelled one lets a virtual clock pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from longturn.cache import Runs, Tokens
from longturn.engine.mover import DevicePool

Logits = Any
"""A tensor [n, vocab_size]; None of a runner that only says how long it would have taken."""


@dataclass(eq=False)
class Passage:
    """`n` tokens of a prompt that go through the layers in several steps, some layers in each.

    layer: the first that they have not been through; state: what the runner keeps of them until the next step. Both are
    the runner's to change.
    """

    n: int
    layer: int = 0
    state: Any = None


@dataclass(frozen=True, eq=False)
class Span:
    """Tokens of one request to compute in a step.

    tokens: int32 [n], at positions `start` to `start + n`; runs: the slots of positions 0 to `start + n` or more, of
    which the first `start` hold KV already; logits: whether the logits behind the last token are wanted; prompt: these
    are tokens of a prompt (only those may be several). passage: of tokens that in this step only get to layer `until`.
    """

    tokens: Tokens
    start: int
    runs: Runs
    logits: bool
    prompt: bool
    passage: Passage | None = None
    until: int = 0

    def part(self, layers: int) -> float:
        """Of so many layers, those that the tokens go through in this step."""
        return 1.0 if self.passage is None else (self.until - self.passage.layer) / layers


@dataclass(frozen=True)
class ModelShape:
    """What scheduler and cache need to know of a model.

    context: most positions; linear_flops: FLOPs per token outside attention; attention_flops: per token and earlier
    token; token_bytes: KV per token; weight_bytes: all weights; layers: in how many parts tokens of a prompt may be
    computed, each in a step of its own (1: only all at once).
    """

    context: int
    vocab_size: int
    token_bytes: int
    weight_bytes: int
    linear_flops: float
    attention_flops: float
    layers: int = 1


class Runner(Protocol):
    """Computes steps of a model over a device pool."""

    @property
    def shape(self) -> ModelShape:
        """The model's figures."""

    @property
    def pool(self) -> DevicePool:
        """The pool that spans address."""

    def execute(self, spans: Sequence[Span]) -> Logits:
        """Compute all spans in one step, writing their KV into the pool. Only the last may have a passage, which moves
        on.

        Returns logits [number of spans that want them, vocab_size], in order.
        """
