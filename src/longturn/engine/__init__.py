"""The engine: requests in, tokens out, over a prefix cache. Importing this package loads no torch."""

import os
from typing import TYPE_CHECKING, Any

from longturn.engine.options import EngineOptions
from longturn.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from longturn.engine.request import Output, Request
    from longturn.engine.service import EngineService, EngineState, ModelInfo

# Before torch is loaded: its threads must spin only shortly when they wait for each other (a setting of libgomp).
# Spinning without end, the default, stands in the way of everything else that wants a core: on two cores shared with
# one other process a decode step took 30 times as long. Not spinning at all costs two thirds more time on a quiet
# machine; this costs nothing there, and a factor of 3 or so on the shared one.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__all__ = ["EngineOptions", "EngineService", "EngineState", "ModelInfo", "Output", "Request", "SamplingParams"]

_HOME = {
    "EngineService": "service",
    "EngineState": "service",
    "ModelInfo": "service",
    "Output": "request",
    "Request": "request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"longturn.engine.{_HOME[name]}"), name)
