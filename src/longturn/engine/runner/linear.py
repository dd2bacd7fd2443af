"""Linears with packed weights whose rows do not feel each other, for the CPU in bf16.

oneDNN chooses its way of summing by the number of rows, so that a token's result would depend on how many others are
computed beside it: in the last bit, but after thirty layers in the answer. Most numbers of rows give the same bits;
which do not, differs by CPU, shape and packing (with AMX some of the large ones, without it often a single row). So
each kind of linear is tried once when a model is loaded, and batches are cut or filled up to sizes that agree. Then a
prompt's KV is the same to the bit whether it is computed at once, in chunks, or behind a cached prefix. Where too few
sizes agree, speed goes first and rows are computed as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from longturn.engine.runner.int4 import MOST_ROWS, OUTPUTS, Int4Linear
from longturn.engine.runner.levels import GROUP, levels_of
from longturn.engine.runner.native import WHOLE, Native
from longturn.engine.runner.rounding import PERIOD, TINY, paired, repeated, repeats

# Numbers of rows up to this are compared with, and are all tried. A batch of them takes as long as four times as many
# in a large one.
SMALL = 32
_SMALL_COST = 4
_SIZES = (64, 96, *range(128, 2049, 128))
# Of the weights of large models only these are tried: each try takes long.
_FEW_SIZES = (512, 1024, 2048)
_LARGE = 8 << 20
# A single token is not filled up to more rows than this: it would cost more than equal bits are worth.
_MOST_FOR_ONE = 8

Work = Callable[[Tensor, Tensor | None], Tensor]
Sizes = frozenset[int]


def by_parts(work: Work, sizes: Sizes, x: Tensor, other: Tensor | None = None) -> Tensor:
    """work(x, other), on parts of the rows of x [1, n, ...] whose numbers are among `sizes`; at once if it is empty."""
    n = x.shape[-2]
    if n in sizes or not sizes:
        return work(x, other)
    size, padded = parts_of(n, sizes)
    if padded > n:
        x = nn.functional.pad(x, (0, 0, 0, padded - n))
        other = None if other is None else nn.functional.pad(other, (0, 0, 0, padded - n))
    if padded == size:
        return work(x, other).narrow(-2, 0, n)
    rows = torch.split(x, size, dim=-2)
    others = [None] * len(rows) if other is None else torch.split(other, size, dim=-2)
    results = [work(part, beside) for part, beside in zip(rows, others, strict=True)]
    return torch.cat(results, dim=-2).narrow(-2, 0, n)


@cache
def parts_of(n: int, sizes: Sizes) -> tuple[int, int]:
    """How to cut `n` rows: into parts of so many, after padding to so many in all."""
    if n <= SMALL:
        size = min(size for size in sizes if size >= n)
        return size, size
    padded, _, size = min((-(-n // size) * size, -size, size) for size in sizes if size > SMALL)
    return (size, padded) if padded <= n * _SMALL_COST else (SMALL, -(-n // SMALL) * SMALL)


def common(*several: Sizes) -> Sizes:
    """The sizes that are in all; none if that leaves no large one, so that each is better cut by itself."""
    sizes = several[0].intersection(*several[1:])
    return sizes if any(size > SMALL for size in sizes) else frozenset()


def together(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of linears of the same input as one: [out, in] and [out]."""
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    return torch.cat([linear.weight.data for linear in linears]), torch.cat(biases) if biases else None


class PackedLinear(nn.Module):
    """Linears of the same input as one [out, in], in a packed layout; the plain weights are not kept.

    operation: done with the result while it is written: "none", "swish", or "add" or "mul" with another tensor; bits:
    of the weights, 16, 8 (native ones only) or 4; native: kernels of our own, oneDNN's without them. sizes: numbers
    of rows that agree with each other, empty where too few do or all do; same_bits: whether it is so that no row feels
    others. Takes 0.7 of the time of a plain linear at 1 to 32 rows, 0.8 at 512 (measured, oneDNN's).
    """

    def __init__(
        self,
        linears: list[nn.Linear],
        operation: str = "none",
        *,
        bits: int = WHOLE,
        native: Native | None = None,
    ) -> None:
        super().__init__()
        self.operation = operation
        weight, self.bias = together(linears)
        n_out, n_in = weight.shape
        self.native = None if native is None else native.linear(weight, self.bias, operation, bits)
        self._of_few_rows: Int4Linear | None = None
        if self.native is None and bits == 4 and n_in % GROUP == 0 and n_out % OUTPUTS == 0:
            few = levels_of(weight, bits)
            self._of_few_rows, weight = Int4Linear(few, self.bias, operation), few.meant
        self.sizes: Sizes = frozenset()
        if self.native is None:
            kind = n_out, n_in, operation, self.bias is not None, torch.get_num_threads()
            # Wide ones are read faster when packed for several rows, but more sizes may agree when packed for one.
            packings = (SMALL, 1) if n_out >= 2 * n_in else (1, SMALL)
            packed_for = max(packings, key=lambda rows: len(_agreeing_sizes(rows, *kind)))
            self.sizes = _agreeing_sizes(packed_for, *kind)
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, packed_for)
        if self.native is None:
            self.same_bits = bool(self.sizes) and self._of_few_rows is None
        else:
            self.same_bits = self.native.same_bits

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """x [1, n, in] to [1, n, out], which is also the shape of the `other` that is added or multiplied."""

        if self._of_few_rows is not None and x.shape[-2] <= MOST_ROWS:
            return self._of_few_rows(x, other)
        if self.native is not None:
            return self.native(x, other)

        def work(rows: Tensor, others: Tensor | None) -> Tensor:
            return _linear(rows, self.packed, self.bias, self.operation, others)

        return by_parts(work, self.sizes, x, other)


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None, operation: str, other: Tensor | None) -> Tensor:
    if other is None:
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, operation, [], "")  # type: ignore[no-any-return]
    return torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, bias, operation)  # type: ignore[no-any-return]


@cache
def _agreeing_sizes(packed_for: int, n_out: int, n_in: int, operation: str, biased: bool, threads: int) -> Sizes:
    """Numbers of rows, 0 included, with which a linear of this kind gives the bits that SMALL rows give."""
    sizes = _FEW_SIZES if n_out * n_in > _LARGE else _SIZES
    weight = repeated(paired(-1, PERIOD, n_in), n_out)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, packed_for)
    beside = paired(1, PERIOD, n_out) * TINY
    x = repeated(paired(1, PERIOD, n_in), sizes[-1])[None]
    other = repeated(beside, sizes[-1])[None] if operation in ("add", "mul") else None
    bias = beside[0] if biased else None

    def rows(start: int, stop: int) -> Tensor:
        others = None if other is None else other[:, start:stop]
        return _linear(x[:, start:stop], packed, bias, operation, others)

    expected = torch.cat((rows(0, SMALL), rows(SMALL, 2 * SMALL)), 1)[:, :PERIOD]
    agreeing = [n for n in (*range(1, SMALL + 1), *sizes) if repeats(rows(0, n), expected)]
    if not agreeing or agreeing[0] > _MOST_FOR_ONE:
        return frozenset()
    return common(frozenset((0, *agreeing)))
