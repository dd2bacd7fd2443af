"""Weights of four bits by torch's kernel, for the few rows of decode on CPUs that the native kernels are not for.

More than a few rows are faster with the same weights in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longturn.engine.runner.levels import GROUP, Levels

# The kernel takes outputs by so many.
OUTPUTS = 16
# Each row costs the kernel the same again, while that in bfloat16 reads its weights once for all. Measured: at 1 row
# 2.5 times faster, at 4 rows 1.4 times, at 8 as fast without AMX and slower with it.
MOST_ROWS = 4


class Int4Linear:
    """A linear of at most MOST_ROWS rows at a time. The outputs must be a multiple of OUTPUTS."""

    def __init__(self, weight: Levels, bias: Tensor | None, operation: str) -> None:
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.levels.int(), 1)
        scales = torch.stack((weight.scales, weight.middles), -1)
        self._scales = scales.transpose(0, 1).contiguous().bfloat16()
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
