"""The native kernels on tensors. All are bfloat16 on the CPU, contiguous in their last dimensions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from longturn.cache import Run
from longturn.engine.runner.contract import Span
from longturn.engine.runner.levels import Levels, levels_of
from longturn.engine.runner.memory import Weights
from longturn.engine.runner.native.library import Unavailable, compiled

MOST_DIM = 256
# Inputs of a linear come in multiples of this.
INPUTS = 32
# Bits of a weight that is not rounded.
WHOLE = 16
# As `enum operation` in linear.h numbers them.
OPERATIONS = ("none", "add", "gated", "wide")


class Shape(ctypes.Structure):
    """Heads and strides, as `struct shape` in tiles.h has them."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("query_stride", ctypes.c_int64),
        ("kv_stride", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


class Linear(ctypes.Structure):
    """`struct linear` in linear.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("packed", "levels", "scales", "bias")),
        ("bits", ctypes.c_int64),
        ("n_in", ctypes.c_int64),
        ("n_out", ctypes.c_int64),
        ("operation", ctypes.c_int64),
    )


class NativeLinear:
    """A linear whose rows do not feel each other: x [..., in] to operation(x @ weight.T + bias, other) [..., out].

    operation: "none", "add" (of the other), "gated" (silu of the first half of the results times the second half, so
    that half as many are left) or "wide" (float32).

    bits: of the weights, 16 (bfloat16), 8 or 4. Weights of few bits are kept in bfloat16 beside where many rows are
    faster so, and then a row's bits depend on whether it was one of many.
    """

    def __init__(self, native: Native, weight: Tensor, bias: Tensor | None, operation: str, bits: int) -> None:
        self._native = native
        n_out = len(weight)
        if operation == "gated":
            n_out //= 2
            weight = _in_turns(weight, native.columns // 2)
            bias = None if bias is None else _in_turns(bias[:, None], native.columns // 2).flatten()
        levels: Tensor | None = None
        scales: Tensor | None = None
        if bits < WHOLE:
            few = levels_of(weight, bits)
            panels, scales = _panels(few, native.columns), _scales(few, native.columns)
            levels, scales = native.weights.keep(panels), native.weights.keep(scales)
            weight = few.meant
        packed = native.pack(weight) if bits == WHOLE or native.tiles else None
        # Kept, so that the memory stays.
        self._parts = packed, levels, scales, None if bias is None else bias.float()
        n_in = weight.shape[1]
        addresses = (None if part is None else part.data_ptr() for part in self._parts)
        self.described = Linear(*addresses, bits, n_in, n_out, OPERATIONS.index(operation))
        self.same_bits = packed is None or levels is None
        self._room = int(native.library.longturn_linear_room(ctypes.byref(self.described)))
        self._n_out, self._columns, self._dtype = n_out, native.columns, torch.bfloat16

    def wide(self) -> NativeLinear:
        """The same linear with results in float32, as they were summed."""
        one = copy(self)
        one.described = Linear.from_buffer_copy(self.described)
        one.described.operation = OPERATIONS.index("wide")
        one._dtype = torch.float32
        return one

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows of the weight, which has 16 bits: int64 [..] to [.., in]."""
        packed = self._parts[0]
        assert packed is not None
        # In a panel of so many rows the same pairs of all lie side by side.
        pairs = packed.view(torch.int32).view(-1, self.described.n_in // 2, self._columns)
        at = numbers.reshape(-1)
        return pairs[at // self._columns, :, at % self._columns].view(packed.dtype).view(*numbers.shape, -1)

    def __call__(self, x: Tensor, other: Tensor | None) -> Tensor:
        x = x.contiguous()
        rows = x.numel() // x.shape[-1]
        out = x.new_empty((*x.shape[:-1], self._n_out), dtype=self._dtype)
        beside = None if other is None else other.contiguous()
        self._native.library.longturn_linear(
            ctypes.addressof(self.described),
            x.data_ptr(),
            None if beside is None else beside.data_ptr(),
            out.data_ptr(),
            rows,
            self._native.work(rows * self._room).data_ptr(),
            self._native.threads,
        )
        return out


def _in_turns(rows: Tensor, n: int) -> Tensor:
    """n rows of the first half and n of the second in turns, with zeros where one ends."""
    halves = torch.stack([_filled(half, n) for half in rows.chunk(2)])
    return halves.view(2, -1, n, rows.shape[1]).transpose(0, 1).reshape(-1, rows.shape[1])


def _panels(weight: Levels, columns: int) -> Tensor:
    """As levels.c reads them: uint8 [out / columns][in / 4][columns][4], of four bits two such quads in one."""
    levels = _filled(weight.levels, columns)
    panels, n_in = levels.shape[0] // columns, levels.shape[1]
    if weight.bits == 8:
        return levels.view(panels, columns, n_in // 4, 4).transpose(1, 2)
    first, second = levels.view(panels, columns, n_in // 8, 2, 4).unbind(3)
    return (first | second << 4).transpose(1, 2)


def _scales(weight: Levels, columns: int) -> Tensor:
    """As levels.c reads them: bfloat16 [out / columns][in / 32][2][columns], scales before middles."""
    both = torch.stack((_filled(weight.scales, columns), _filled(weight.middles, columns)), 1)
    return both.view(-1, columns, 2, both.shape[-1]).permute(0, 3, 2, 1).bfloat16()


def _filled(rows: Tensor, columns: int) -> Tensor:
    """With zeros up to whole panels of so many rows."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % columns))


class Layout:
    """Where the spans of one step lie, for all layers: `struct span` and the runs of attention.c.

    The last tokens of the spans whose logits are wanted have spans of their own, for what comes after the last layer's
    keys and values; `asked` are the numbers of their rows. The first n_whole spans, with rows_whole rows, go through
    all layers; the one that may come after them only through those from `begin` to before `end`.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        table: list[tuple[int, ...]] = []
        last: list[tuple[int, ...]] = []
        asked: list[int] = []
        runs: list[Run] = []
        row = 0
        for span in spans:
            n = len(span.tokens)
            table.append((row, n, span.start, len(runs), 0, 0, 0))
            if span.logits:
                last.append((len(last), 1, span.start + n - 1, len(runs), 0, 0, 0))
                asked.append(row + n - 1)
            runs.extend(span.runs.slice(0, span.start + n).runs)
            row += n
        self._tables = [np.array(one, np.int64) for one in (table, last, asked, runs)]
        self.spans, self.last_spans, self.asked, self.runs = (one.ctypes.data for one in self._tables)
        self.n, self.n_asked = len(table), len(last)
        self.n_whole, self.rows_whole, self.begin, self.end = self.n, row, 0, 0
        if (passage := spans[-1].passage) is not None:
            self.n_whole, self.rows_whole = self.n - 1, row - passage.n
            self.begin, self.end = passage.layer, spans[-1].until


def find(dim: int, inputs: Iterable[int] = ()) -> Native | Unavailable:
    """The kernels, for heads of this size and linears with so many inputs; or why they do not serve.

    Where oneDNN has none for bfloat16 they have to serve for all linears.
    """
    if dim > MOST_DIM or dim % 2:
        return Unavailable(f"heads of {dim} numbers")
    odd = [n_in for n_in in inputs if n_in % INPUTS]
    if odd and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return Unavailable(f"a linear of {odd[0]} inputs, which are no multiple of {INPUTS}")
    found = compiled()
    return found if isinstance(found, Unavailable) else Native(found, dim)


class Native:
    """The compiled kernels, for heads of `dim` numbers and as many threads as torch has now. One caller at a time."""

    def __init__(self, found: ctypes.CDLL, dim: int) -> None:
        # Not left to OpenMP: it would take as many as there are cores in a thread of its own.
        self.threads = torch.get_num_threads()
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        found.longturn_room.restype = number
        room = int(found.longturn_room(number(dim)))
        # The kernels want it aligned to 64 bytes, as torch's memory is.
        self.rooms = torch.empty(room * self.threads, dtype=torch.uint8)
        self._work = torch.empty(0, dtype=torch.uint8)
        self.weights = Weights()
        self.library = found
        self.tiles, self.columns = bool(found.longturn_tiles()), int(found.longturn_columns())
        self._pack = found.longturn_pack
        self._pack.argtypes = (pointer, pointer, number, number, ctypes.c_int)
        found.longturn_linear.argtypes = (pointer,) * 4 + (number, pointer, ctypes.c_int)
        found.longturn_linear_room.restype = number
        self._pack.restype = found.longturn_linear.restype = None
        self._attend, self._rotate, self._norm = found.longturn_attend, found.longturn_rotate, found.longturn_norm
        self._attend.argtypes = (pointer,) * 5 + (number, pointer, pointer, pointer, ctypes.c_int)
        self._rotate.argtypes = (pointer,) * 7 + (number, pointer, ctypes.c_int)
        self._norm.argtypes = (pointer,) * 3 + (number, number, ctypes.c_float, ctypes.c_int)
        self._attend.restype = self._rotate.restype = self._norm.restype = None

    def work(self, n: int) -> Tensor:
        """Memory for n bytes, kept from call to call."""
        if len(self._work) < n:
            self._work = torch.empty(n, dtype=torch.uint8)
        return self._work

    def pack(self, weight: Tensor) -> Tensor:
        """A weight [out, in] in bfloat16, as linear.c reads it."""
        n_out, n_in = weight.shape
        packed = self.weights.take(-(-n_out // self.columns) * self.columns * n_in)
        self._pack(weight.contiguous().data_ptr(), packed.data_ptr(), n_out, n_in, self.threads)
        return packed

    def linear(self, weight: Tensor, bias: Tensor | None, operation: str, bits: int = WHOLE) -> NativeLinear | None:
        """The linear [out, in] as these kernels compute it; None where they cannot."""
        if weight.shape[1] % INPUTS:
            return None
        return NativeLinear(self, weight, bias, operation, bits)

    def attend(self, layout: Layout, query: Tensor, pool: Tensor, scale: float) -> Tensor:
        """Causal attention of all spans, query [T, heads, d] to the same; pool: a layer's [2, slots, kv_heads, d]."""
        heads, dim = query.shape[1:]
        kv_heads = pool.shape[2]
        shape = Shape(heads, kv_heads, dim, query.stride(0), kv_heads * dim, scale)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        keys = pool.data_ptr()
        values = keys + pool.stride(0) * pool.element_size()
        self._attend(
            query.data_ptr(),
            keys,
            values,
            out.data_ptr(),
            layout.spans,
            layout.n,
            layout.runs,
            ctypes.byref(shape),
            self.rooms.data_ptr(),
            self.threads,
        )
        return out

    def rotate(self, qkv: Tensor, heads: int, cos: Tensor, sin: Tensor, pool: Tensor, slots: Tensor) -> Tensor:
        """The queries of qkv [T, heads + 2 * kv_heads, d], rotated: [T, heads, d]; its keys, rotated, and its values go
        into the `slots` (int64 [T]) of a layer's pool [2, slots, kv_heads, d] (mutates it).

        cos, sin: [T, d], sin with the sign of the rotation.
        """
        n, _, dim = qkv.shape
        kv_heads = pool.shape[2]
        shape = Shape(heads, kv_heads, dim, 0, kv_heads * dim, 0.0)
        query = qkv.new_empty((n, heads, dim))
        keys = pool.data_ptr()
        values = keys + pool.stride(0) * pool.element_size()
        self._rotate(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            query.data_ptr(),
            keys,
            values,
            slots.data_ptr(),
            n,
            ctypes.byref(shape),
            self.threads,
        )
        return query

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., width] / rms(x) * weight (float32 [width])."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self._norm(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], eps, self.threads
        )
        return out
