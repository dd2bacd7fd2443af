"""Replay on a virtual clock: the real scheduler, loop and cache over a modelled runner and modelled links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from longturn.cache import NoCache
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import all_options, make_policy
from longturn.engine.cost import CostModel
from longturn.engine.loop import Engine
from longturn.engine.modeled import ModeledMover, ModeledRunner, VirtualClock
from longturn.engine.scheduler import Scheduler
from longturn.lab.replay.load import Load
from longturn.lab.replay.play import play
from longturn.lab.replay.result import Replay
from longturn.lab.replay.tokens import TokenWriter
from longturn.lab.trace import Trace

# Modelled prompts are never looked up in a vocabulary; the larger the range, the fewer tokens are equal by chance.
_VOCAB = 1 << 30


class Wordless:
    """Stands in for a tokenizer where nobody reads the text: a token is one letter."""

    added_tokens_decoder: Mapping[int, Any] = {}

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "x" * len(token_ids)


def replay_timed(
    trace: Trace,
    policy: str,
    options: Mapping[str, Any],
    device_tokens: int,
    host_tokens: int,
    cost: CostModel,
    load: Load,
    progress: Callable[[int], None] = lambda n: None,
) -> Replay:
    """Serve `trace` under `load` by an engine with that policy, on hardware as `cost` models it.

    device_tokens, host_tokens are as given, whatever the scale. Raises ConfigError or TraceError.
    """
    clock = VirtualClock()
    cache = make_policy(policy, options, Sizes(device_tokens, host_tokens, real=True, clock=clock))
    mover = ModeledMover(cost, clock, cache.page_size)
    engine = Engine(
        cache=cache,
        mover=mover,
        runner=ModeledRunner(cost, clock, cache.page_size),
        scheduler=Scheduler(
            cache,
            mover,
            max_running=load.max_running,
            chunk_tokens=min(load.chunk_tokens, cache.chunk_tokens or load.chunk_tokens),
            layers=cost.shape.layers,
            shares=not isinstance(cache, NoCache),
            clock=clock,
        ),
        tokenizer=Wordless(),  # type: ignore[arg-type]
        model=cost.model.name,
        eos_ids=(),
        max_length=cache.longest,
        page_size=cache.page_size,
        clock=clock,
    )
    replay = Replay(trace.name, policy, all_options(policy, options), "timed", device_tokens, host_tokens)
    replay.served = play(
        engine,
        load.pace(trace),
        TokenWriter(trace.unit, _VOCAB, load.scale),
        clock.until,
        lambda: clock.advance(cost.request_seconds),
        progress,
    )
    replay.seconds = clock()
    replay.host_byte_seconds, replay.transfer_bytes = mover.host_byte_seconds, mover.traffic.bytes
    replay.premises = [
        *trace.notes,
        *load.premises(),
        f"times are {cost.provenance}",
        "every policy runs under Longturn's scheduler; its own engine's may order requests otherwise",
    ]
    return replay
