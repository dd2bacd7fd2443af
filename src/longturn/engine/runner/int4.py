"""Weights of four bits, for the few rows of decode on the CPU, where reading weights is what takes the time.

Round to nearest in groups of 32 inputs, each with a scale and a middle of its own: what GGUF calls Q4_1 has the same
form, so a model that was shipped that way loses next to nothing. More than a few rows are faster with the same weights
in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

GROUP = 32
# The kernel takes outputs by so many.
OUTPUTS = 16
_STEPS, _HALF = 15, 8
# Each row costs the kernel the same again, while that in bfloat16 reads its weights once for all. Measured: at 1 row
# 2.5 times faster, at 4 rows 1.4 times, at 8 as fast without AMX and slower with it.
MOST_ROWS = 4


class Int4Linear:
    """A linear of at most MOST_ROWS rows at a time; made by `quantised`."""

    def __init__(self, levels: Tensor, scales: Tensor, bias: Tensor | None, operation: str) -> None:
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        self._scales = scales
        self._bias = bias
        self._operation = operation

    def __call__(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """x [1, n, in] to [1, n, out], with `other` of that shape added or multiplied."""
        rows: Any = torch.ops.aten._weight_int4pack_mm_for_cpu(x[0], self._packed, GROUP, self._scales)
        result: Tensor = rows[None] if self._bias is None else rows[None] + self._bias
        if self._operation == "swish":
            return nn.functional.silu(result)
        if other is None:
            return result
        return result.add_(other) if self._operation == "add" else result.mul_(other)


def quantised(weight: Tensor, bias: Tensor | None, operation: str) -> tuple[Int4Linear, Tensor]:
    """The linear of a weight [out, in], and what its four bits stand for: bfloat16 of the same shape.

    operation: as of `PackedLinear`. The inputs must be a multiple of GROUP, the outputs of OUTPUTS.
    """
    out, n_in = weight.shape
    groups = weight.float().view(out, n_in // GROUP, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / _STEPS).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16().float()
    middle = (low + _HALF * scale).bfloat16().float()
    levels = ((groups - middle) / scale + _HALF).round().clamp(0, _STEPS)
    meant = ((levels - _HALF) * scale + middle).view(out, n_in).bfloat16()
    scales = torch.cat((scale, middle), -1).transpose(0, 1).contiguous().bfloat16()
    return Int4Linear(levels.view(out, n_in).int(), scales, bias, operation), meant
