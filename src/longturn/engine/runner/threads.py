"""The threads that torch and the native kernels compute with."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from longturn.engine.runner.native import Unavailable, openmp_of_torch

_SOFT = 1


def let_threads_go() -> None:
    """End the threads that wait for more work of the calling thread; the next work starts new ones.

    OpenMP keeps a set of threads for each thread that has ever computed. Once there are more of them than cores, all of
    them go to sleep at once wherever they wait for each other, some hundred times in a step. So whoever loads a model
    in one thread and computes in another has to let the first one's go (measured: a step of 19 ms takes 13).
    """
    # Other systems and other OpenMP libraries have no such trouble, or no such call.
    with suppress(Unavailable, AttributeError, OSError):
        ctypes.CDLL(str(openmp_of_torch())).omp_pause_resource_all(_SOFT)
