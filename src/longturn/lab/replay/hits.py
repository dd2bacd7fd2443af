"""Serial replay without a clock: one request after the other, and what of each was cached. Exact to the token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from longturn.cache import PrefixCache, Tokens
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import all_options, make_policy
from longturn.lab.replay.result import Replay, Served
from longturn.lab.replay.symbols import Symbols
from longturn.lab.trace import Trace, TraceRequest


def replay_hits(
    trace: Trace,
    policy: str,
    options: Mapping[str, Any],
    device_tokens: int,
    host_tokens: int = 0,
    progress: Callable[[int], None] = lambda n: None,
) -> Replay:
    """Serve every request of `trace` in its order through a new cache of that policy.

    Where a block of the trace is several tokens, the cache works on blocks: its own page becomes at least one block,
    and nothing shorter can be reused. progress: called with the number of requests done. Raises ConfigError or
    TraceError.
    """
    sizes, clock = serial_sizes(trace, device_tokens, host_tokens)
    cache = make_policy(policy, options, sizes)
    replay = Replay(trace.name, policy, all_options(policy, options), "hits", device_tokens, host_tokens)
    serve_all(trace, replay, lambda request, prompt: cache, clock, progress)
    return replay


class TraceClock:
    """The time of the request that is being served."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def serial_sizes(trace: Trace, device_tokens: int, host_tokens: int) -> tuple[Sizes, TraceClock]:
    """Sizes for a cache that works on the trace's own blocks, and the clock that it will read."""
    clock = TraceClock()
    return Sizes(device_tokens // trace.unit, host_tokens // trace.unit, trace.unit, clock=clock), clock


def serve_all(
    trace: Trace,
    replay: Replay,
    pick: Callable[[TraceRequest, Tokens], PrefixCache],
    clock: TraceClock,
    progress: Callable[[int], None] = lambda n: None,
) -> None:
    """Serve every request by the cache that `pick` names for it and its prompt (mutates `replay` and the caches)."""
    unit, symbols = trace.unit, Symbols(trace.unit)
    for request in trace:
        clock.now = request.time
        prompt, whole = symbols.written(request)
        cache = pick(request, prompt)
        began = time.process_time()
        cached = serve(cache, prompt, whole, request.salt)
        replay.cpu_seconds += time.process_time() - began
        if cached is None:
            replay.served.append(Served(request.id, request.prompt_tokens, {}, None, 0))
        else:
            tiers, reported = _in_tokens(cached, unit, request.prompt_tokens)
            replay.served.append(Served(request.id, request.prompt_tokens, tiers, reported, request.output_tokens))
        progress(len(replay.served))
    replay.premises += [
        *trace.notes,
        "requests run strictly one after the other, and the client resends its whole history",
    ]
    if unit > 1:
        replay.premises.append(f"the cache works on the trace's blocks of {unit} tokens")
    if symbols.unknown_answers:
        replay.premises.append(
            f"the answers of {symbols.unknown_answers:,} requests are not in the trace: they take room, no more"
        )


def serve(cache: PrefixCache, prompt: Tokens, whole: Tokens, salt: str = "") -> tuple[dict[str, int], int] | None:
    """One request from lookup to release, all moves landing at once (mutates the cache).

    prompt: int32 [P]; whole: the same with the answer behind it. Returns the symbols reused per tier and those that the
    engine would report, None when it would refuse the request, which then changes nothing.
    """
    n_prompt, n = len(prompt), len(whole)
    if n > cache.longest:
        return None
    hit = cache.lookup(prompt, salt)
    fetch = cache.prefetch(hit)
    land_all(cache)
    if fetch is not None:
        cache.landed(fetch, len(fetch.keys))
        hit = cache.lookup(prompt, salt)
    allocation = cache.admit(hit, n - n_prompt)
    if allocation is None:
        return None
    land_all(cache)
    cached, reported = dict(allocation.cached), allocation.reported
    done = allocation.reused
    while done < n_prompt:
        done = n_prompt if cache.chunk_tokens is None else min(done + cache.chunk_tokens, n_prompt)
        cache.extend(allocation, done)
        cache.commit(allocation, prompt[:done])
    for length in range(n_prompt + 1, n + cache.overlap):
        cache.extend(allocation, length)
        cache.commit(allocation, whole[:length])
    cache.release(allocation)
    land_all(cache)
    return cached, sum(cached.values()) if reported is None else reported


def land_all(cache: PrefixCache) -> None:
    """Carry out every move that is listed, at once and whole."""
    while transfers := cache.take_transfers():
        for transfer in transfers:
            cache.landed(transfer, len(transfer.keys))


def _in_tokens(cached: tuple[dict[str, int], int], unit: int, logical: int) -> tuple[dict[str, int], int]:
    """Symbols as tokens. All but the last symbol can be reused, so that these are fewer than there are; an engine may
    report more."""
    tiers, reported = cached
    return {tier: n * unit for tier, n in tiers.items() if n}, min(reported * unit, logical)
