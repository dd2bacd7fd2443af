"""Decoder layers with fewer and faster operations, for the CPU in bf16.

They stand in for the layers of `transformers` in the families whose layers are the plain ones: projections that read
the same input are one, weights are packed, activations, products and residual sums are done while a linear writes,
and queries and keys are rotated together. Results differ from the plain layers only in rounding. Other families keep
their own layers and get packed linears.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longturn.engine.runner.attention import attention
from longturn.engine.runner.linear import PackedLinear, Sizes, by_parts, common, parts_of, together
from longturn.engine.runner.native import WHOLE, Native, NativeLinear, Parts
from longturn.engine.runner.plan import StepPlan

# norm, attention (rotary over the whole head, no soft cap or gate), sum, norm, gated MLP, sum.
PLAIN_LAYER = ("PlainLayer", "LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
# Norms that are x / rms(x) * weight, computed in float32.
PLAIN_NORM = ("PlainNorm", "LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


class Norm(nn.Module):
    """RMS norm over the last dimension. torch's own is composite on the CPU and four times slower at a few rows."""

    def __init__(self, weight: Tensor, eps: float, native: Native | None) -> None:
        super().__init__()
        self.weight = weight.float()
        self.eps = torch.tensor(eps)
        self.share = 1.0 / weight.shape[-1]
        self._native = native

    def forward(self, x: Tensor) -> Tensor:
        if self._native is not None:
            return self._native.norm(x, self.weight, float(self.eps))
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x * torch.addcmul(self.eps, norm, norm, value=self.share).rsqrt_()).mul_(self.weight).to(x.dtype)


def signed(sin: Tensor) -> Tensor:
    """sin [..., d] with the sign of the rotation."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)


class Attention:
    """One projection for queries, keys and values, rotary, attention over the pool, output projection."""

    def __init__(self, plain: Any, bits: int, native: Native | None) -> None:
        self.native = native
        self.dim = int(plain.head_dim)
        self.heads = plain.q_proj.out_features // self.dim
        self.kv_heads = plain.k_proj.out_features // self.dim
        self.qkv = PackedLinear([plain.q_proj, plain.k_proj, plain.v_proj], bits=bits, native=native)
        self.out = PackedLinear([plain.o_proj], "add", bits=bits, native=native)
        self.q_norm, self.k_norm = (
            _norm(norm, native) if (norm := getattr(plain, name, None)) is not None else None
            for name in ("q_norm", "k_norm")
        )
        self.scale = float(plain.scaling)
        window = getattr(plain, "sliding_window", getattr(plain.config, "sliding_window", None))
        self.window = None if type(plain).__name__ == "LlamaAttention" else window
        self.layer = int(plain.layer_idx)

    def __call__(self, x: Tensor, residual: Tensor, position: tuple[Tensor, Tensor], plan: StepPlan) -> Tensor:
        """Attention of x [1, T, hidden], added to `residual` of the same shape."""
        n, heads, kv_heads = x.shape[1], self.heads, self.kv_heads
        qkv = self.qkv(x).view(n, heads + 2 * kv_heads, self.dim)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys, values = qkv.split((heads, kv_heads, kv_heads), 1)
            qkv = torch.cat((self.q_norm(queries), self.k_norm(keys), values), 1)
        cos, sin = self.rope(plan, *position)
        if self.native is not None and plan.within(self.window):
            query = self.native.rotate(qkv, heads, cos, sin, plan.kv[self.layer], plan.new_slots)
            result = self.native.attend(plan.native, query, plan.kv[self.layer], self.scale)
        else:
            result = self._attended(qkv, cos, sin, plan)
        summed: Tensor = self.out(result.reshape(1, n, heads * self.dim), residual)
        return summed

    def _attended(self, qkv: Tensor, cos: Tensor, sin: Tensor, plan: StepPlan) -> Tensor:
        """Rotary and attention by torch's kernels: qkv [T, heads + 2 * kv_heads, d] to [T, heads, d]."""
        turning, half = self.heads + self.kv_heads, self.dim // 2
        rotating, values = qkv[:, :turning], qkv[:, turning:]
        swapped = torch.cat((rotating[..., half:], rotating[..., :half]), -1)
        rotated = torch.addcmul(rotating * cos, swapped, sin)
        query, keys = rotated[:, : self.heads], rotated[:, self.heads :]
        return attention(plan, self.layer, query, keys, values, self.scale, self.window)

    def rope(self, plan: StepPlan, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, d] with the sign of the rotation in sin; made once a step for all layers."""
        if plan.rope is None or plan.rope[0] is not cos:
            plan.rope = cos, cos[0].unsqueeze(1), signed(sin[0]).unsqueeze(1)
        return plan.rope[1], plan.rope[2]


class MLP:
    """down(silu(gate(x)) * up(x)). With kernels of our own, the gate and what goes through it are one linear."""

    def __init__(self, plain: Any, bits: int, native: Native | None) -> None:
        self.down = PackedLinear([plain.down_proj], "add", bits=bits, native=native)
        self.gated: NativeLinear | None = None
        if native is not None:
            weight, bias = together([plain.gate_proj, plain.up_proj])
            self.gated = native.linear(weight, bias, "gated", bits)
        self._apart: tuple[PackedLinear, ...] = ()
        if self.gated is None:
            gate = PackedLinear([plain.gate_proj], "swish", bits=bits)
            self._apart = gate, PackedLinear([plain.up_proj], "mul", bits=bits)
        # Cut once for all three, so that only the narrow result is put together again.
        self._sizes = common(*(linear.sizes for linear in (*self._apart, self.down)))

    @property
    def same_bits(self) -> bool:
        """Whether no row of its linears feels others."""
        return all(linear.same_bits for linear in (*self._apart, self.down, self.gated) if linear is not None)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """The MLP of x [1, T, hidden], added to `residual` of the same shape."""
        return by_parts(self._rows, self._together(x.shape[-2]), x, residual)

    def _together(self, n: int) -> Sizes:
        """The sizes to cut n rows by for all three; none where that would fill up more than each needs by itself."""
        if not self._sizes or n in self._sizes:
            return self._sizes
        rows = parts_of(n, self._sizes)[1]
        alone = [parts_of(n, linear.sizes)[1] for linear in (*self._apart, self.down)]
        return self._sizes if min(alone) == rows else frozenset()

    def _rows(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if self.gated is not None:
            through = self.gated(x, None)
        else:
            gate, up = self._apart
            through = up(x, gate(x))
        summed: Tensor = self.down(through, residual)
        return summed


class Layer(nn.Module):
    """A whole decoder layer."""

    def __init__(self, plain: Any, bits: int, native: Native | None) -> None:
        super().__init__()
        self._before_attention = _norm(plain.input_layernorm, native)
        self._before_mlp = _norm(plain.post_attention_layernorm, native)
        self._attention, self._mlp = Attention(plain.self_attn, bits, native), MLP(plain.mlp, bits, native)

    @property
    def window(self) -> int | None:
        """How many tokens its attention looks back; None for all."""
        return self._attention.window

    @property
    def same_bits(self) -> bool:
        """Whether a token's result is the same to the bit in all batches, if that of the attention is."""
        attention, mlp = self._attention, self._mlp
        linears = (attention.qkv, attention.out, mlp)
        return attention.window is None and all(linear.same_bits for linear in linears)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        longturn_step: StepPlan,
        **kwargs: Any,
    ) -> Tensor:
        """hidden_states [1, T, hidden] to the same."""
        attended = self._attention(
            self._before_attention(hidden_states), hidden_states, position_embeddings, longturn_step
        )
        return self._mlp(self._before_mlp(attended), attended)

    def parts(self) -> Parts | None:
        """What it consists of, where all of it is native."""
        attention, mlp = self._attention, self._mlp
        every = (attention.qkv.native, attention.out.native, mlp.gated, mlp.down.native)
        linears = [one for one in every if one is not None]
        if len(linears) < len(every):
            return None
        norms = (self._before_attention, self._before_mlp, attention.q_norm, attention.k_norm)
        return Parts(
            linears,
            [None if norm is None else norm.weight for norm in norms],
            float(self._before_attention.eps),
            attention.heads,
            attention.kv_heads,
            attention.dim,
            attention.scale,
        )


class SharedEmbedding(nn.Module):
    """The embedding of a model whose head has the same weight, which is kept once."""

    def __init__(self, head: NativeLinear) -> None:
        super().__init__()
        self._head = head

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [..] to [.., hidden]."""
        return self._head.rows(tokens)


def share_embedding(model: Any) -> None:
    """Have the embedding of `model` read from its head, where it is the same and kept in one piece (mutates it)."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = model.config.get_text_config().tie_word_embeddings and type(embedding) is nn.Embedding
    if tied and isinstance(head, PackedLinear) and head.native is not None and head.native.described.bits == WHOLE:
        model.set_input_embeddings(SharedEmbedding(head.native))


def replace_layers(model: nn.Module, bits: int = WHOLE, native: Native | None = None) -> None:
    """Replace the layers of `model` by faster ones, and its other linears by packed ones (mutates it).

    bits: of the weights within layers, 16 or less. Those of the head are 8 then, or 16 without native kernels: 4 there
    cost ten times as much perplexity as in all layers of the demo model. native: kernels of our own.
    """
    for name, child in list(model.named_children()):
        faster = _faster(child, bits, native)
        if faster is None:
            replace_layers(child, bits, native)
        else:
            setattr(model, name, faster)


def same_bits(model: Any) -> bool:
    """Whether all layers of the model were replaced, and tokens get the same bits from its linears in all batches."""
    layers = [child.same_bits for child in model.modules() if isinstance(child, Layer)]
    linears = [child.same_bits for child in model.modules() if isinstance(child, PackedLinear)]
    return len(layers) == model.config.get_text_config().num_hidden_layers and all(layers) and all(linears)


def _faster(plain: Any, bits: int, native: Native | None) -> nn.Module | None:
    kind = type(plain).__name__
    if kind in PLAIN_LAYER and plain.mlp.config.hidden_act == "silu":
        return Layer(plain, bits, native)
    if kind in PLAIN_NORM:
        return _norm(plain, native)
    head_bits = WHOLE if bits == WHOLE else 8
    return PackedLinear([plain], bits=head_bits, native=native) if isinstance(plain, nn.Linear) else None


def _norm(plain: Any, native: Native | None) -> Norm:
    return Norm(plain.weight.data, plain.variance_epsilon, native)
