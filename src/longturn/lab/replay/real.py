"""Replay by a real engine: the torch runner on this machine, the same loop, scheduler and policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from longturn.cache.policies.registry import all_options
from longturn.engine import EngineOptions
from longturn.lab.replay.load import Load
from longturn.lab.replay.play import play
from longturn.lab.replay.result import Replay
from longturn.lab.replay.tokens import TokenWriter
from longturn.lab.trace import Trace


def replay_real(
    trace: Trace,
    policy: str,
    options: Mapping[str, Any],
    device_tokens: int,
    host_tokens: int,
    load: Load,
    model: str = "demo",
    progress: Callable[[int], None] = lambda n: None,
) -> Replay:
    """Serve `trace` under `load` by the torch runner with that policy. The answers are the trace's own.

    Raises ConfigError, ModelError or TraceError.
    """
    from longturn.engine.build import build

    settings = ",".join(f"{key}={value}" for key, value in options.items())
    built = build(
        EngineOptions(
            model=model,
            policy=f"{policy}:{settings}" if settings else policy,
            device_tokens=device_tokens,
            host_tokens=host_tokens,
            max_running=load.max_running,
            chunk_tokens=load.chunk_tokens,
        )
    )
    try:
        engine = built.engine
        writer = TokenWriter(trace.unit, engine.runner.shape.vocab_size, load.scale)
        replay = Replay(trace.name, policy, all_options(policy, options), "real", device_tokens, host_tokens)
        began = engine.clock()
        replay.served = play(engine, load.pace(trace), writer, _sleep_until(engine.clock), progress=progress)
        replay.seconds = engine.clock() - began
        replay.premises = [
            *trace.notes,
            *load.premises(),
            f"times are measured: {built.model.name} on this machine",
        ]
        return replay
    finally:
        built.close()


def _sleep_until(clock: Callable[[], float]) -> Callable[[float], None]:
    return lambda until: time.sleep(max(until - clock(), 0.0))
