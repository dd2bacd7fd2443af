"""Kernels of our own for CPUs with AVX2, or AVX-512 BF16 (and AMX): attention over the pool, linears, rotary, RMS norm.

`attention.c` and `few.c` (single tokens), `linear.c` and `levels.c` (weights of few bits) and `rows.c` say what they
compute, `vectors.h` with what, `cores.c` on which cores, and `layer.c` puts it together, `library.py` compiles them,
`calls.py` and `layer.py` hand them tensors.
"""

from longturn.engine.runner.native.calls import INPUTS, WHOLE, Layout, Native, NativeLinear, find
from longturn.engine.runner.native.layer import NativeLayers, Parts
from longturn.engine.runner.native.library import Unavailable, openmp_of_torch

__all__ = [
    "INPUTS",
    "WHOLE",
    "Layout",
    "Native",
    "NativeLayers",
    "NativeLinear",
    "Parts",
    "Unavailable",
    "find",
    "openmp_of_torch",
]
