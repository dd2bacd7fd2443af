"""Linears with packed weights whose rows do not feel each other, for the CPU in bf16.

oneDNN chooses its way of summing by the number of rows, so that a token's result would depend on how many others are
computed beside it: in the last bit, but after thirty layers in the answer. Up to 32 rows all numbers of rows gave the
same bits wherever this was tried; of larger ones only some do, which depends on the shape. So each shape is tried once
when a model is loaded, and batches are cut into sizes that agree with the small ones. Then a prompt's KV is the same to
the bit whether it is computed at once, in chunks, or behind a cached prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

# Numbers of rows up to this agree with each other; a batch of them takes as long as one of four times as many in a
# large batch.
SMALL = 32
_SMALL_COST = 4
_SIZES = tuple(range(256, 2049, 128))
# Of the weights of large models only these are tried: each try takes long.
_FEW_SIZES = (512, 1024, 2048)
_LARGE = 8 << 20


_Part = Callable[[Tensor, Tensor | None], Tensor]


class PackedLinear(nn.Module):
    """Linears of the same input as one [out, in], in oneDNN's layout; the plain weights are not kept.

    Takes 0.7 of the time of a plain linear at 1 to 32 rows, 0.8 at 512 (measured).
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        weight = torch.cat([linear.weight.data for linear in linears])
        biases = [linear.bias.data for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, SMALL)
        self.sizes = _agreeing_sizes(self, *weight.shape)

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """x [1, n, in] to [1, n, out], with `activation` ("none" or "swish")."""

        def part(rows: Tensor, _: Tensor | None) -> Tensor:
            return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, activation, [], "")  # type: ignore[no-any-return]

        return self._by_parts(part, x, None)

    def then(self, x: Tensor, operation: str, other: Tensor) -> Tensor:
        """The linear, then `operation` ("add" or "mul") with `other`, which has the shape of the result."""

        def part(rows: Tensor, others: Tensor | None) -> Tensor:
            return torch.ops.mkldnn._linear_pointwise.binary(rows, others, self.packed, self.bias, operation)  # type: ignore[no-any-return]

        return self._by_parts(part, x, other)

    def _by_parts(self, part: _Part, x: Tensor, other: Tensor | None) -> Tensor:
        n = x.shape[-2]
        if n <= SMALL:
            return part(x, other)
        size, padded = parts_of(n, self.sizes)
        if size == n:
            return part(x, other)
        if padded > n:
            x = nn.functional.pad(x, (0, 0, 0, padded - n))
            other = None if other is None else nn.functional.pad(other, (0, 0, 0, padded - n))
        others = [None] * (padded // size) if other is None else list(torch.split(other, size, dim=-2))
        results = [part(rows, beside) for rows, beside in zip(torch.split(x, size, dim=-2), others, strict=True)]
        return torch.cat(results, dim=-2).narrow(-2, 0, n)


@cache
def parts_of(n: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """How to cut `n` rows: into parts of so many, after padding to so many in all."""
    ways = [(-(-n // size) * size, -size, size) for size in sizes]
    padded, _, size = min(ways, default=(n * _SMALL_COST * 2, 0, SMALL))
    return (size, padded) if padded <= n * _SMALL_COST else (SMALL, -(-n // SMALL) * SMALL)


_probed: dict[tuple[int, int, int], tuple[int, ...]] = {}


def _agreeing_sizes(linear: PackedLinear, n_out: int, n_in: int) -> tuple[int, ...]:
    """The numbers of rows for which `linear` gives the bits that it gives for few rows."""
    key = (n_out, n_in, torch.get_num_threads())
    if key not in _probed:
        sizes = _FEW_SIZES if n_out * n_in > _LARGE else _SIZES
        x = torch.randn(1, sizes[-1], n_in, generator=torch.Generator().manual_seed(0)).bfloat16()
        linear.sizes = (SMALL,)
        expected = linear(x)
        _probed[key] = tuple(n for n in sizes if torch.equal(_at_once(linear, x[:, :n]), expected[:, :n]))
    return _probed[key]


def _at_once(linear: PackedLinear, x: Tensor) -> Tensor:
    linear.sizes = (x.shape[1],)
    result: Tensor = linear(x)
    return result
