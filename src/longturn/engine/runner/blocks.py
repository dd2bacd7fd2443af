"""Attention and MLP blocks with fewer and faster operations, for the CPU in bf16.

They stand in for the blocks of `transformers` in the families whose blocks are the plain ones: projections that read
the same input are one, weights are packed once in oneDNN's layout (0.7 of the time of a plain linear at 1 to 32 rows,
0.8 at 512), activation and product of the MLP are done while its linears write, and queries and keys are rotated
together. Results differ from the plain blocks only in rounding. Other families keep their own blocks and get packed
linears.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longturn.engine.runner.attention import StepPlan, attention

# Attention without soft cap or gate, rotary over the whole head.
PLAIN_ATTENTION = ("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention")
PLAIN_MLP = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")
# Norms that are x / rms(x) * weight, computed in float32.
PLAIN_NORM = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
_ROWS_PACKED_FOR = 16


class PackedLinear(nn.Module):
    """A linear [out, in] with its weight in oneDNN's layout; the plain weight is not kept."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        weight = torch.cat([linear.weight.data for linear in linears])
        biases = [linear.bias.data for linear in linears if linear.bias is not None]
        self.out_features, self.in_features = weight.shape
        self.bias = torch.cat(biases) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_PACKED_FOR)

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_with(x, "none")

    def apply_with(self, x: Tensor, activation: str) -> Tensor:
        """The linear, then `activation` ("none" or "swish")."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, activation, [], "")  # type: ignore[no-any-return]

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """The linear, times `factor`."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, factor, self.packed, self.bias, "mul")  # type: ignore[no-any-return]


class Norm(nn.Module):
    """RMS norm over the last dimension. torch's own is composite on the CPU and four times slower at a few rows."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = weight.float()
        self.eps = torch.tensor(eps)
        self.share = 1.0 / weight.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x * torch.addcmul(self.eps, norm, norm, value=self.share).rsqrt_()).mul_(self.weight).to(x.dtype)


class Attention(nn.Module):
    """One projection for queries, keys and values, rotary, attention over the pool, output projection."""

    def __init__(self, plain: Any, q_norm: nn.Module | None, k_norm: nn.Module | None) -> None:
        super().__init__()
        self.dim = int(plain.head_dim)
        self.heads = plain.q_proj.out_features // self.dim
        self.kv_heads = plain.k_proj.out_features // self.dim
        self.qkv = PackedLinear([plain.q_proj, plain.k_proj, plain.v_proj])
        self.out = PackedLinear([plain.o_proj])
        self.q_norm, self.k_norm = q_norm, k_norm
        self.scale = float(plain.scaling)
        window = getattr(plain, "sliding_window", getattr(plain.config, "sliding_window", None))
        self.window = None if type(plain).__name__ == "LlamaAttention" else window
        self.layer = int(plain.layer_idx)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        longturn_step: StepPlan,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [1, T, hidden] to the same."""
        n, heads, kv_heads = hidden_states.shape[1], self.heads, self.kv_heads
        qkv = self.qkv(hidden_states).view(n, heads + 2 * kv_heads, self.dim)
        rotating, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            rotating = torch.cat((self.q_norm(rotating[:, :heads]), self.k_norm(rotating[:, heads:])), 1)
        cos, sin = self._rope(longturn_step, *position_embeddings)
        half = self.dim // 2
        swapped = torch.cat((rotating[..., half:], rotating[..., :half]), -1)
        rotated = torch.addcmul(rotating * cos, swapped, sin)
        query, keys = rotated[:, :heads], rotated[:, heads:]
        result = attention(longturn_step, self.layer, query, keys, values, self.scale, self.window)
        return self.out(result.reshape(1, n, heads * self.dim)), None

    def _rope(self, plan: StepPlan, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, d] with the sign of the rotation in sin; made once a step for all layers."""
        if plan.rope is None or plan.rope[0] is not cos:
            half = self.dim // 2
            signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
            plan.rope = cos, cos[0].unsqueeze(1), signed[0].unsqueeze(1)
        return plan.rope[1], plan.rope[2]


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), the activation and the product done while the linears write."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.gate = PackedLinear([plain.gate_proj])
        self.up = PackedLinear([plain.up_proj])
        self.down = PackedLinear([plain.down_proj])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.up.times(x, self.gate.apply_with(x, "swish")))
        return result


def replace_blocks(model: nn.Module) -> None:
    """Replace the blocks of `model` by faster ones where there are any (mutates it)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (block := _faster(child)) is not None:
                setattr(parent, name, block)


def _faster(plain: Any) -> nn.Module | None:
    kind = type(plain).__name__
    if kind in PLAIN_NORM:
        return Norm(plain.weight.data, plain.variance_epsilon)
    if kind in PLAIN_ATTENTION:
        norms = (_faster(getattr(plain, name, None)) for name in ("q_norm", "k_norm"))
        return Attention(plain, *norms)
    if kind in PLAIN_MLP and plain.config.hidden_act == "silu":
        return MLP(plain)
    return PackedLinear([plain]) if isinstance(plain, nn.Linear) else None
