"""The engine: requests in, tokens out, over a prefix cache. Importing this package loads no torch."""

from typing import TYPE_CHECKING, Any

from longturn.engine.options import EngineOptions
from longturn.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from longturn.engine.request import Output, Request
    from longturn.engine.service import EngineService, EngineState, ModelInfo

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
