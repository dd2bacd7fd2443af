"""Linears with packed weights whose rows do not feel each other, for the CPU in bf16.

oneDNN chooses its way of summing by the number of rows, so that a token's result would depend on how many others are
computed beside it: in the last bit, but after thirty layers in the answer. Up to 32 rows all numbers of rows gave the
same bits wherever this was tried; of larger ones all or some do, by shape and packing. So each shape is tried once when
a model is loaded, and batches are cut into sizes that agree with the small ones. Then a prompt's KV is the same to the
bit whether it is computed at once, in chunks, or behind a cached prefix. Where no size agrees, speed goes first and
rows are computed as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

# Numbers of rows up to this agree with each other. A batch of them takes as long as four times as many in a large one.
SMALL = 32
_SMALL_COST = 4
_SIZES = (64, 96, *range(128, 2049, 128))
# Of the weights of large models only these are tried: each try takes long.
_FEW_SIZES = (512, 1024, 2048)
_LARGE = 8 << 20
_agreeing: dict[tuple[int, int, int], tuple[int, ...]] = {}

Work = Callable[[Tensor, Tensor | None], Tensor]


def by_parts(work: Work, sizes: tuple[int, ...], x: Tensor, other: Tensor | None = None) -> Tensor:
    """work(x, other), on parts of the rows of x [1, n, ...] whose numbers are among `sizes` or small."""
    n = x.shape[-2]
    if n <= SMALL or not sizes or n in sizes:
        return work(x, other)
    size, padded = parts_of(n, sizes)
    if padded > n:
        x = nn.functional.pad(x, (0, 0, 0, padded - n))
        other = None if other is None else nn.functional.pad(other, (0, 0, 0, padded - n))
    rows = torch.split(x, size, dim=-2)
    others = [None] * len(rows) if other is None else torch.split(other, size, dim=-2)
    results = [work(part, beside) for part, beside in zip(rows, others, strict=True)]
    return torch.cat(results, dim=-2).narrow(-2, 0, n)


@cache
def parts_of(n: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """How to cut `n` rows: into parts of so many, after padding to so many in all."""
    padded, _, size = min((-(-n // size) * size, -size, size) for size in sizes)
    return (size, padded) if padded <= n * _SMALL_COST else (SMALL, -(-n // SMALL) * SMALL)


class PackedLinear(nn.Module):
    """Linears of the same input as one [out, in], in oneDNN's layout; the plain weights are not kept.

    sizes: numbers of rows beyond SMALL that agree with the small ones. Takes 0.7 of the time of a plain linear at 1 to
    32 rows, 0.8 at 512 (measured).
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        weight = torch.cat([linear.weight.data for linear in linears])
        biases = [linear.bias.data for linear in linears if linear.bias is not None]
        n_out, n_in = weight.shape
        self.bias = torch.cat(biases) if biases else None
        # Packed for one row, all numbers of rows agree; wide ones are read faster when packed for several.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, SMALL if n_out >= 2 * n_in else 1)
        self.sizes: tuple[int, ...] = ()
        self.sizes = self._agreeing_sizes(n_out, n_in)

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """x [1, n, in] to [1, n, out], with `activation` ("none" or "swish")."""

        def work(rows: Tensor, _: Tensor | None) -> Tensor:
            return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, activation, [], "")  # type: ignore[no-any-return]

        return by_parts(work, self.sizes, x)

    def then(self, x: Tensor, operation: str, other: Tensor) -> Tensor:
        """The linear, then `operation` ("add" or "mul") with `other`, which has the shape of the result."""

        def work(rows: Tensor, others: Tensor | None) -> Tensor:
            return torch.ops.mkldnn._linear_pointwise.binary(rows, others, self.packed, self.bias, operation)  # type: ignore[no-any-return]

        return by_parts(work, self.sizes, x, other)

    def _agreeing_sizes(self, n_out: int, n_in: int) -> tuple[int, ...]:
        key = (n_out, n_in, torch.get_num_threads())
        if key not in _agreeing:
            sizes = _FEW_SIZES if n_out * n_in > _LARGE else _SIZES
            x = torch.randn(1, sizes[-1], n_in, generator=torch.Generator().manual_seed(0)).bfloat16()
            small = torch.cat([self(x[:, at : at + SMALL]) for at in range(0, x.shape[1], SMALL)], 1)
            _agreeing[key] = tuple(n for n in sizes if torch.equal(self(x[:, :n]), small[:, :n]))
        return _agreeing[key]
