"""All decoder layers of a model as one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from longturn.engine.runner.native.calls import Layout, Linear, Native, NativeLinear, Shape

LINEARS = ("qkv", "out", "gated", "down")
NORMS = ("before_attention", "before_mlp", "query_norm", "key_norm")


@dataclass(frozen=True)
class Parts:
    """What a layer consists of: linears and norms in the order of LINEARS and NORMS.

    Norms are float32 [hidden], those of queries and keys [d], or None where a model has none.
    """

    linears: Sequence[NativeLinear]
    norms: Sequence[Tensor | None]
    eps: float
    heads: int
    kv_heads: int
    dim: int
    scale: float


class _Layer(ctypes.Structure):
    """`struct layer` in layer.c."""

    _fields_ = (
        *((name, Linear) for name in LINEARS),
        *((name, ctypes.c_void_p) for name in NORMS),
        ("eps", ctypes.c_float),
    )


class _Spans(ctypes.Structure):
    """`struct spans` in layer.c."""

    _fields_ = (("all", ctypes.c_void_p), ("n", ctypes.c_int64), ("rows", ctypes.c_int64))


class _Step(ctypes.Structure):
    """`struct step` in layer.c."""

    _fields_ = (
        *((name, _Spans) for name in ("spans", "whole", "last")),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("asked", "slots", "runs", "cos", "sin", "rooms", "work")),
        ("shape", Shape),
        ("threads", ctypes.c_int),
    )


class NativeLayers:
    """The layers that are made of `parts`, alike but for their weights."""

    def __init__(self, native: Native, parts: Sequence[Parts]) -> None:
        self._native = native
        # Their weights must outlive the table.
        self._parts = parts
        found = native.library
        self._compute = found.longturn_layers
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._compute.argtypes = (pointer, number, pointer, pointer, pointer, number, number)
        self._compute.restype = None
        self._layers = (_Layer * len(parts))(*(_described(one) for one in parts))
        found.longturn_width.restype = number
        self._width = int(found.longturn_width(ctypes.byref(self._layers[0])))

    def __len__(self) -> int:
        return len(self._parts)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, pool: Tensor, slots: Tensor, layout: Layout) -> Tensor:
        """x [T, hidden] (mutated) to [rows that `layout` is asked for, hidden], of the memory of x, whose last rows are
        those of a passage that does not end.

        KV of its tokens goes into `slots` (int64 [T]) of pool [layers, 2, slots, kv_heads, d]. cos, sin: [T, d], sin
        with the sign of the rotation.
        """
        parts, native, n = self._parts[0], self._native, len(x)
        row = parts.kv_heads * parts.dim
        step = _Step(
            _Spans(layout.spans, layout.n, n),
            _Spans(layout.spans, layout.n_whole, layout.rows_whole),
            _Spans(layout.last_spans, layout.n_asked, layout.n_asked),
            layout.begin,
            layout.end,
            layout.asked,
            slots.data_ptr(),
            layout.runs,
            cos.data_ptr(),
            sin.data_ptr(),
            native.rooms.data_ptr(),
            native.work(n * self._width * x.element_size()).data_ptr(),
            Shape(parts.heads, parts.kv_heads, parts.dim, parts.heads * parts.dim, row, parts.scale),
            native.threads,
        )
        self._compute(
            ctypes.addressof(self._layers),
            len(self._parts),
            ctypes.addressof(step),
            x.data_ptr(),
            pool.data_ptr(),
            pool.stride(1),
            pool.stride(0),
        )
        return x[: layout.n_asked]


def _described(parts: Parts) -> _Layer:
    return _Layer(
        *(linear.described for linear in parts.linears),
        *(None if norm is None else norm.data_ptr() for norm in parts.norms),
        parts.eps,
    )
