"""A whole model's step in few calls, where all that it consists of is native: Python is at work between steps only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longturn.engine.runner.layers import Layer, Norm, signed
from longturn.engine.runner.linear import PackedLinear
from longturn.engine.runner.native import Native, NativeLayers, NativeLinear
from longturn.engine.runner.plan import StepPlan

# Embedding, layers, norm, head, and nothing between them.
PLAIN_MODEL = ("PlainCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Rotations that a position determines, and not also how long the sequence is.
STEADY_ROTARY = ("default", "linear", "llama3", "yarn")


class Turns:
    """By how much each position turns queries and keys; kept where that never changes."""

    def __init__(self, model: Any) -> None:
        self._rotary = model.model.rotary_emb
        # Of the type that it is to answer in.
        self._x = model.model.norm.weight.new_empty(0, dtype=torch.bfloat16)
        self._table: tuple[Tensor, Tensor] | None = None
        if self._rotary.rope_type in STEADY_ROTARY:
            self._table = self._compute(torch.arange(model.config.max_position_embeddings))

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, bfloat16 [T, d], of positions int64 [T]; sin with the sign of the rotation."""
        if self._table is None:
            return self._compute(positions)
        cos, sin = self._table
        return cos[positions], sin[positions]

    def _compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._rotary(self._x, positions[None])
        return cos[0], signed(sin[0])


class WholeModel:
    """A `transformers` model whose layers were replaced, computed without its own forward."""

    def __init__(self, model: Any, layers: NativeLayers, head: NativeLinear, windows: set[int | None]) -> None:
        self._embed, self._turns = model.model.embed_tokens, Turns(model)
        self._layers = layers
        self._norm, self._head = model.model.norm, head.wide()
        self._windows = windows
        self.n_layers = len(layers)

    @property
    def in_parts(self) -> bool:
        """Whether this can compute any step, and so the tokens of a prompt by some layers at a time."""
        return self._windows == {None}

    def takes(self, plan: StepPlan) -> bool:
        """Whether this can compute the step."""
        return all(plan.within(window) for window in self._windows)

    def __call__(self, tokens: Tensor, positions: Tensor, plan: StepPlan) -> Tensor:
        """Logits, float32 [spans that want them, vocabulary], for tokens and positions, int64 [T].

        Their KV goes into the pool.
        """
        x = self._embed(tokens)
        cos, sin = self._turns(positions)
        span = plan.spans[-1]
        passage = span.passage
        if passage is not None and passage.state is not None:
            x[-passage.n :] = passage.state
        rows = self._layers(x, cos, sin, plan.kv, plan.new_slots, plan.native)
        if passage is not None:
            passage.layer = span.until
            passage.state = x[-passage.n :].clone() if span.until < self.n_layers else None
        return self._head(self._norm(rows), None)


def find_whole(model: Any, native: Native) -> WholeModel | None:
    """None where some part of the model has to be computed otherwise."""
    if type(model).__name__ not in PLAIN_MODEL or not isinstance(model.lm_head, PackedLinear):
        return None
    head = model.lm_head.native
    layers = list(model.model.layers)
    if not isinstance(model.model.norm, Norm) or not all(isinstance(layer, Layer) for layer in layers):
        return None
    parts = [part for layer in layers if (part := layer.parts()) is not None]
    if head is None or len(parts) < len(layers):
        return None
    windows = {layer.window for layer in layers}
    return WholeModel(model, NativeLayers(native, parts), head, windows)
