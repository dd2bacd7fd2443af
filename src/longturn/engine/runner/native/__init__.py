"""Kernels of our own for CPUs with AVX-512 BF16 (and AMX): attention over the pool, linears, rotary, RMS norm.

`attention.c`, `linear.c` and `rows.c` say what they compute, `library.py` compiles it, `calls.py` hands it tensors.
"""

from longturn.engine.runner.native.calls import Layout, Native, find
from longturn.engine.runner.native.library import Unavailable

__all__ = ["Layout", "Native", "Unavailable", "find"]
