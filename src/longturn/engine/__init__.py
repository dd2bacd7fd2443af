"""The engine: requests in, tokens out, over a prefix cache. Importing this package loads no torch."""

import os
from typing import TYPE_CHECKING, Any

from longturn.engine.options import EngineOptions
from longturn.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from longturn.engine.request import Output, Request
    from longturn.engine.service import EngineService, EngineState, ModelInfo

# Before torch is loaded: its threads must sleep, not spin, while they wait for each other. Spinning ones stand in each
# other's way as soon as anything else wants a core: on two cores shared with one other process a decode step took
# twenty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
