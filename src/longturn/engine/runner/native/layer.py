"""A whole decoder layer as one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longturn.engine.runner.native.calls import Layout, Linear, Native, NativeLinear, Shape

LINEARS = ("qkv", "out", "gate", "up", "down")
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


class _Step(ctypes.Structure):
    """`struct step` in layer.c."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("n_spans", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "slots", "runs", "spans", "rooms", "work")),
        ("shape", Shape),
        ("threads", ctypes.c_int),
    )


class NativeLayer:
    """The layer that is made of `parts`."""

    def __init__(self, native: Native, parts: Parts) -> None:
        self._native = native
        self._parts = parts
        found = native.library
        self._compute = found.longturn_layer
        self._compute.argtypes = (ctypes.c_void_p,) * 6
        self._compute.restype = None
        self._layer = _Layer(
            *(linear.described for linear in parts.linears),
            *(None if norm is None else norm.data_ptr() for norm in parts.norms),
            parts.eps,
        )
        found.longturn_width.restype = ctypes.c_int64
        self._width = int(found.longturn_width(ctypes.byref(self._layer)))

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, pool: Tensor, slots: Tensor, layout: Layout) -> Tensor:
        """x [1, T, hidden] to the same; KV of its tokens goes into `slots` (int64 [T]) of pool [2, slots, kv_heads, d].

        cos, sin: [T, d], sin with the sign of the rotation.
        """
        x = x.contiguous()
        out = torch.empty_like(x)
        if layout.step is None:
            layout.step = self._step(x.shape[1], cos, sin, slots, layout)
        keys = pool.data_ptr()
        values = keys + pool.stride(0) * pool.element_size()
        self._compute(
            ctypes.addressof(self._layer),
            ctypes.addressof(layout.step),
            x.data_ptr(),
            keys,
            values,
            out.data_ptr(),
        )
        return out

    def _step(self, n: int, cos: Tensor, sin: Tensor, slots: Tensor, layout: Layout) -> _Step:
        """What is the same for all layers of a step; the tensors must outlive it."""
        parts = self._parts
        row = parts.kv_heads * parts.dim
        return _Step(
            n,
            layout.n,
            cos.data_ptr(),
            sin.data_ptr(),
            slots.data_ptr(),
            layout.runs,
            layout.spans,
            self._native.rooms.data_ptr(),
            self._native.work(n * self._width).data_ptr(),
            Shape(parts.heads, parts.kv_heads, parts.dim, parts.heads * parts.dim, row, parts.scale),
            self._native.threads,
        )
