"""Several replicas behind a router: what it is worth that a conversation comes back to where its prefix lies."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import xxhash

from longturn.cache import PrefixCache, Tokens
from longturn.cache.policies.registry import all_options, make_policy
from longturn.lab.replay import Replay
from longturn.lab.replay.hits import serial_sizes, serve_all
from longturn.lab.trace import Trace, TraceRequest

# A prefix decides where a request goes when it covers this share of the prompt, as in SGLang's cache-aware router
# (sgl-model-gateway, cache_threshold); otherwise the replica goes that has served the fewest tokens.
CACHE_THRESHOLD = 0.3

Router = Callable[[TraceRequest, Tokens], int]


class Replicas:
    """Caches of equal size, and the tokens that each has served."""

    def __init__(self, caches: list[PrefixCache], seed: int = 0) -> None:
        self.caches = caches
        self.served = [0] * len(caches)
        self._random = random.Random(seed)
        self._turn = 0

    def random(self, request: TraceRequest, prompt: Tokens) -> int:
        """Anywhere."""
        return self._random.randrange(len(self.caches))

    def round_robin(self, request: TraceRequest, prompt: Tokens) -> int:
        """One after the other."""
        self._turn += 1
        return self._turn % len(self.caches)

    def sticky(self, request: TraceRequest, prompt: Tokens) -> int:
        """A session always goes to the same replica."""
        return xxhash.xxh64_intdigest(request.session.encode()) % len(self.caches)

    def prefix_aware(self, request: TraceRequest, prompt: Tokens) -> int:
        """Where the longest prefix lies, if it is long; else where the least was served."""
        found = [cache.lookup(prompt, request.salt).total for cache in self.caches]
        best = max(range(len(found)), key=found.__getitem__)
        if found[best] > CACHE_THRESHOLD * len(prompt):
            return best
        return min(range(len(self.served)), key=self.served.__getitem__)


ROUTERS = ("random", "round_robin", "sticky", "prefix_aware")


def replay_routed(
    trace: Trace,
    policy: str,
    options: Mapping[str, Any],
    device_tokens: int,
    host_tokens: int,
    router: str,
    n_replicas: int,
) -> Replay:
    """A serial replay over `n_replicas` caches, each with these capacities."""
    sizes, clock = serial_sizes(trace, device_tokens, host_tokens)
    replicas = Replicas([make_policy(policy, options, sizes) for _ in range(n_replicas)])
    choose: Router = getattr(replicas, router)

    def pick(request: TraceRequest, prompt: Tokens) -> PrefixCache:
        where = choose(request, prompt)
        replicas.served[where] += len(prompt)
        return replicas.caches[where]

    replay = Replay(trace.name, policy, all_options(policy, options), "hits", device_tokens, host_tokens)
    serve_all(trace, replay, pick, clock)
    replay.premises.append(f"{n_replicas} replicas behind a {router.replace('_', '-')} router")
    return replay
