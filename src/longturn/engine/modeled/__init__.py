"""The simulator's half of an engine: a clock that is moved, a runner that only takes time, and links that do.

The scheduler, the loop and the caches above them are the real ones.
"""

from longturn.engine.modeled.clock import VirtualClock
from longturn.engine.modeled.mover import ModeledMover
from longturn.engine.modeled.runner import ModeledRunner

__all__ = ["ModeledMover", "ModeledRunner", "VirtualClock"]
