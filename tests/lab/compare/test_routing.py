"""Several replicas behind a router: who is sent where, and what that is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from longturn.cache import PrefixCache
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import POLICIES, make_policy
from longturn.lab.compare.routing import ROUTERS, Replicas, replay_routed
from longturn.lab.replay import replay_hits
from longturn.lab.replay.hits import serve
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.live.traces import request

TALKS = Generated(Workload(sessions=12, turns=6, system_tokens=30, sharing=0.0, user_tokens=40, output_tokens=30))


def caches(n: int) -> list[PrefixCache]:
    return [make_policy("longturn", {}, Sizes(2000)) for _ in range(n)]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_one_replica_is_a_replay_without_a_router(policy: str, router: str) -> None:
    alone = replay_hits(TALKS, policy, {}, 1500, 600)
    routed = replay_routed(TALKS, policy, {}, 1500, 600, router, 1)
    assert routed.served == alone.served
    assert routed.premises == [*alone.premises, f"1 replicas behind a {router.replace('_', '-')} router"]


def test_stickiness_is_worth_something() -> None:
    """Sessions that share nothing: three of four random turns find nothing of them, and sticky ones all."""
    found = {
        router: replay_routed(TALKS, "longturn", {}, 20_000, 0, router, 4).totals()["cached"] for router in ROUTERS
    }
    everything = replay_hits(TALKS, "longturn", {}, 100_000).totals()["cached"]
    assert found["sticky"] == everything
    assert found["prefix_aware"] == everything
    assert found["random"] < 0.7 * everything
    assert found["round_robin"] < 0.7 * everything


def test_a_sticky_session_stays_whatever_happens() -> None:
    replicas = Replicas(caches(5))
    prompt = np.arange(10, dtype=np.int32)
    where = {name: replicas.sticky(request(name, range(10)), prompt) for name in map(str, range(50))}
    assert set(where.values()) == set(range(5))
    again = Replicas(caches(5), seed=9)
    assert {name: again.sticky(request(name, range(3)), prompt[:3]) for name in where} == where


def test_round_robin_takes_turns() -> None:
    replicas = Replicas(caches(3))
    prompt = np.arange(10, dtype=np.int32)
    turns = [replicas.round_robin(request("a", range(10)), prompt) for _ in range(9)]
    assert turns[:3] * 3 == turns
    assert sorted(turns[:3]) == [0, 1, 2]


def test_random_is_the_same_every_time_and_goes_everywhere() -> None:
    prompt = np.arange(10, dtype=np.int32)
    one, other = ([Replicas(caches(4)).random(request("a", [1]), prompt) for _ in range(3)] for _ in range(2))
    assert one == other
    replicas = Replicas(caches(4))
    assert {replicas.random(request("a", [1]), prompt) for _ in range(100)} == {0, 1, 2, 3}


def test_prefix_aware_goes_where_the_longest_prefix_lies() -> None:
    replicas = Replicas(caches(3))
    text = np.arange(100, dtype=np.int32)
    for place, n in enumerate((20, 80, 50)):
        serve(replicas.caches[place], text[:n], text[: n + 1])
    replicas.served = [300, 200, 100]
    asked = request("a", range(100))
    assert replicas.prefix_aware(asked, text) == 1
    # Under another salt nothing is there, and the one that served the least goes.
    assert replicas.prefix_aware(replace(asked, salt="x"), text) == 2
    # What is found must be more than 0.3 of the prompt: 80 of 267 tokens are not, 80 of 266 are.
    longer = np.concatenate((text[:80], np.arange(1000, 1200, dtype=np.int32)))
    assert replicas.prefix_aware(asked, longer[:267]) == 2
    assert replicas.prefix_aware(asked, longer[:266]) == 1


def test_the_router_counts_what_each_has_served() -> None:
    """Without anything in common, prefix-aware routing shares out the tokens evenly."""
    talks = Generated(Workload(sessions=40, turns=1, system_tokens=50, sharing=0.0))
    replay = replay_routed(talks, "vllm", {}, 20_000, 0, "prefix_aware", 4)
    assert replay.totals()["cached"] == 0
    replicas = Replicas(caches(2))
    for n in (70, 30, 20, 10):
        prompt = np.full(n, n, dtype=np.int32)
        replicas.served[replicas.prefix_aware(request("a", [n]), prompt)] += n
    assert replicas.served == [70, 60]
