"""vLLM with and without its host tier: recorded runs, a naive model, the peculiar rules by hand, and random lives."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longturn.cache import Drop, Load, PrefixCache, Save
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.errors import CacheCorruption, ConfigError
from longturn.lab.replay.hits import land_all, serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk
from tests.cache.policies.vllm_naive import NaiveVllm
from tests.cache.policies.workload import conversations, reported

B = 16
MET: Counter[str] = Counter()


def cache_of(blocks: int = 100, host: int = 0, real: bool = False, **options: Any) -> PrefixCache:
    name = "vllm-offload" if host else "vllm"
    return make_policy(name, {"block_size": B, **options}, Sizes(blocks * B, host * B, real=real))


def turn(cache: PrefixCache, prompt: list[int], output: int = 1, salt: str = "") -> tuple[dict[str, int], int]:
    """One whole request: the tokens reused in each tier, and what the engine would report."""
    served = serve(cache, array(prompt), array(prompt + text(output, 77)), salt)
    cache.check_integrity()
    assert served is not None
    return {tier: n for tier, n in served[0].items() if n}, served[1]


def device(cache: PrefixCache, prompt: list[int], salt: str = "") -> int:
    return cache.lookup(array(prompt), salt).device


def host(cache: PrefixCache, prompt: list[int]) -> int:
    """Leading tokens of `prompt` that the host has."""
    cache.clear("device")
    return cache.lookup(array([*prompt, -1])).host


# -- against the engine and the naive model ------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*recordings("vllm"), *recordings("vllm-offload")])
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


@pytest.mark.parametrize("seed", range(80))
def test_as_the_naive_model_says(seed: int) -> None:
    rng = random.Random(seed)
    size, longest = rng.choice([1, 2, 4, 16]), rng.choice([40, 120])
    blocks = rng.randint(3, longest * 4 // size)
    chunks = rng.choice([0, 3, 10, blocks, 2 * blocks])
    order, prompt_only, threshold = rng.choice(["lru", "arc"]), rng.random() < 0.5, rng.choice([0, 1, 2, 3])
    requests = conversations(seed, 50, longest, rng.choice([3, 50]))
    naive = NaiveVllm(blocks, size, chunks, order, prompt_only, threshold)
    options = {"host_eviction": order, "offload_prompt_only": prompt_only, "store_threshold": threshold}
    # What is less than a block is of no use.
    sizes = Sizes(blocks * size + rng.randrange(size), chunks * size)
    cache = make_policy("vllm-offload", {"block_size": size, **options}, sizes)
    assert reported(cache, requests) == [naive.serve(*request) for request in requests]


# -- the device ----------------------------------------------------------------------------------------------------


def test_whole_blocks_are_reused_but_never_the_one_with_the_last_token() -> None:
    cache = cache_of()
    turn(cache, text(64))
    assert [device(cache, text(n)) for n in (64, 65, 63, 16, 1)] == [48, 64, 48, 0, 0]
    assert turn(cache, text(64)) == ({"device": 48}, 48)


def test_output_is_kept_but_for_its_last_token() -> None:
    cache = cache_of()
    turn(cache, text(60), 52)
    assert device(cache, [*text(60), *text(52, 77), 5]) == 96
    cache = cache_of()
    turn(cache, text(60), 53)
    assert device(cache, [*text(60), *text(53, 77), 5]) == 112


def test_a_request_that_does_not_fit_touches_nothing() -> None:
    cache = cache_of(blocks=4)
    turn(cache, text(48))
    assert serve(cache, array(text(60, 1)), array(text(65, 1))) is None
    assert device(cache, text(49)) == 48
    assert serve(cache, array(text(60, 1)), array(text(64, 1))) is not None


def test_salts_are_apart() -> None:
    cache = cache_of()
    turn(cache, text(40), salt="a")
    assert [device(cache, text(40), salt) for salt in ("a", "b", "")] == [32, 0, 0]


def test_tails_go_first_and_requests_in_the_order_of_their_release() -> None:
    cache = cache_of(blocks=10)
    running = cache.admit(cache.lookup(array(text(48, 1))), 1)
    assert running is not None
    cache.commit(running, array(text(48, 1)))
    turn(cache, text(48, 2))
    # It was admitted first and is released last.
    cache.release(running)
    turn(cache, text(96, 3))
    assert [device(cache, [*text(48, seed), 0]) for seed in (1, 2)] == [48, 16]


def test_a_hit_alone_does_not_make_anything_newer() -> None:
    cache = cache_of(blocks=6)
    turn(cache, text(32, 1))
    turn(cache, text(32, 2))
    # A hit of the first block of the older one: it comes back to the end of the queue, the other does not.
    turn(cache, [*text(16, 1), *text(20, 3)])
    turn(cache, text(40, 4))
    assert [device(cache, [*text(32, seed), 0]) for seed in (1, 2)] == [16, 16]


def test_blocks_without_a_name_are_used_up_first() -> None:
    cache = cache_of(blocks=6)
    turn(cache, text(40, 1))
    turn(cache, text(40, 2))
    # Four blocks have a name; the two others are handed out again and again.
    for seed in range(3, 9):
        turn(cache, text(12, seed), 3)
    assert [device(cache, text(40, seed)) for seed in (1, 2)] == [32, 32]
    turn(cache, text(16, 9))
    turn(cache, text(16, 9), 17)
    assert [device(cache, text(40, seed)) for seed in (1, 2)] == [16, 32]


def test_equal_content_is_kept_twice_and_the_older_is_found() -> None:
    cache = cache_of(blocks=4)
    turn(cache, text(32))
    turn(cache, text(32))
    assert cache.state().tiers[0].used == 3 * B
    # The older copy of the second block goes first; then the younger one is found.
    turn(cache, text(16, 1))
    turn(cache, text(16, 2))
    assert device(cache, [*text(32), 0]) == 32


def test_nothing_is_found_before_it_is_computed() -> None:
    cache = cache_of()
    first = cache.admit(cache.lookup(array(text(80))), 4)
    assert first is not None
    assert device(cache, text(80)) == 0
    cache.commit(first, array(text(40)))
    assert device(cache, text(80)) == 32
    second = cache.admit(cache.lookup(array(text(80))), 4)
    assert second is not None
    assert second.reused == 32
    # Cancelled: what it had not computed holds nothing, and what it shared stays with the other.
    cache.release(second)
    cache.check_integrity()
    assert device(cache, text(80)) == 32
    assert cache.state().tiers[0].used == 5 * B


def test_a_prompt_needs_room_beside_the_idle_blocks_that_it_hits() -> None:
    cache = cache_of(blocks=4)
    turn(cache, text(32))
    running = cache.admit(cache.lookup(array(text(20, 1))), 1)
    assert running is not None
    hit = cache.lookup(array([*text(32), 1, 2]))
    assert hit.device == 32
    assert cache.admit(hit, 1) is None
    assert device(cache, text(33)) == 32
    cache.release(running)
    last = cache.admit(hit, 1)
    assert last is not None
    assert cache.extend(last, 64)
    assert not cache.extend(last, 65)
    cache.check_integrity()


def test_a_hit_that_went_stale_is_looked_up_again() -> None:
    cache = cache_of(blocks=4)
    turn(cache, text(40))
    hit = cache.lookup(array(text(40)))
    turn(cache, text(60, 1))
    allocation = cache.admit(hit, 1)
    assert allocation is not None
    assert (hit.device, allocation.reused) == (32, 0)


def test_what_real_slots_are_handed_out() -> None:
    cache = cache_of(blocks=5, real=True)
    first = cache.admit(cache.lookup(array(text(20))), 40)
    assert first is not None
    assert list(first.runs) == [(0, 32)]
    assert cache.extend(first, 33)
    assert list(first.runs) == [(0, 48)]
    cache.commit(first, array(text(33)))
    cache.release(first)
    # The block that is not full is at the front, the others at the back, the second before the first.
    second = cache.admit(cache.lookup(array(text(80, 1))), 0)
    assert second is not None
    assert list(second.runs) == [(32, 80), (16, 32), (0, 16)]


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        make_policy("vllm", {}, Sizes(15))


def test_check_integrity_finds_what_is_broken() -> None:
    cache: Any = cache_of()
    allocation = cache.admit(cache.lookup(array(text(40))), 4)
    cache.commit(allocation, array(text(40)))
    cache.check_integrity()
    cache._refs[allocation.where.blocks[0]] += 1
    with pytest.raises(CacheCorruption, match="block 0 is held"):
        cache.check_integrity()
    cache._refs[allocation.where.blocks[0]] -= 1
    cache._index.forget(allocation.where.blocks[:1])
    with pytest.raises(CacheCorruption, match="out of the index"):
        cache.check_integrity()


# -- host memory ---------------------------------------------------------------------------------------------------


def test_the_host_may_cover_a_whole_prompt_and_that_is_reported() -> None:
    cache = cache_of(host=10)
    turn(cache, text(64))
    assert turn(cache, text(64)) == ({"device": 48, "host": 15}, 64)
    cache.clear("device")
    assert turn(cache, text(64)) == ({"host": 63}, 64)
    assert turn(cache, text(65)) == ({"device": 64}, 64)


@pytest.mark.parametrize(("prompt_only", "kept"), [(True, 32), (False, 96)])
def test_output_stays_off_the_host_until_a_prompt_repeats_it(prompt_only: bool, kept: int) -> None:
    cache = cache_of(host=10, offload_prompt_only=prompt_only)
    turn(cache, text(40), 64)
    whole = [*text(40), *text(64, 77)]
    assert host(cache, whole) == kept
    turn(cache, whole)
    assert host(cache, whole) == 96


def test_hits_on_the_device_keep_the_host_fresh_but_not_behind_a_load() -> None:
    cache = cache_of(host=5)
    turn(cache, text(40, 1))
    turn(cache, text(40, 2))
    turn(cache, text(40, 1))
    turn(cache, text(40, 3))
    # The second request was the oldest; of its blocks the deeper one goes first. One block was free.
    assert [host(cache, text(40, seed)) for seed in (1, 2, 3)] == [32, 16, 32]


def test_an_offer_is_taken_whole_or_not_at_all() -> None:
    cache = cache_of(host=4)
    turn(cache, text(32, 1))
    turn(cache, text(90, 2))
    assert [host(cache, text(80, 2)), host(cache, text(32, 1))] == [0, 32]
    turn(cache, text(70, 2))
    assert [host(cache, text(64, 2)), host(cache, text(32, 1))] == [64, 0]


def test_a_block_is_stored_when_it_has_been_offered_often_enough() -> None:
    cache = cache_of(host=10, store_threshold=3)
    kept = []
    for _ in range(4):
        turn(cache, text(40))
        kept.append(host(cache, text(40)))
    assert kept == [0, 0, 32, 32]


def test_arc_protects_what_came_back() -> None:
    kept = {}
    for order in ("lru", "arc"):
        cache = cache_of(host=6, host_eviction=order)
        turn(cache, text(40, 1))
        turn(cache, text(40, 1))
        for seed in (2, 3, 4):
            turn(cache, text(40, seed))
        kept[order] = [host(cache, text(40, seed)) for seed in (1, 2, 3, 4)]
    assert kept == {"lru": [0, 32, 32, 32], "arc": [32, 0, 32, 32]}


def moves(cache: PrefixCache) -> list[Any]:
    return cache.take_transfers()


def test_moves_are_listed_in_order_and_name_their_pages() -> None:
    cache = cache_of(blocks=8, host=2, real=True)
    first = cache.admit(cache.lookup(array(text(33))), 1)
    assert first is not None
    assert moves(cache) == []
    cache.commit(first, array(text(33)))
    (save,) = moves(cache)
    assert isinstance(save, Save)
    assert (len(set(save.keys)), list(save.runs), save.tiers) == (2, [(0, 32)], ("host",))
    cache.release(first)
    cache.clear("device")
    second = cache.admit(cache.lookup(array([*text(16), *text(17, 1)])), 1)
    assert second is not None
    (load,) = moves(cache)
    assert isinstance(load, Load)
    assert (load.keys, list(load.runs), load.first, load.skip) == (save.keys[:1], list(second.runs.slice(0, 16)), 0, 0)
    # It can be found when it has arrived.
    assert device(cache, text(33)) == 0
    cache.landed(load, 1)
    assert device(cache, text(33)) == 16
    cache.commit(second, array([*text(16), *text(17, 1)]))
    drop, save = moves(cache)
    assert isinstance(drop, Drop)
    assert isinstance(save, Save)
    assert list(save.runs) == list(second.runs.slice(16, 32))
    cache.check_integrity()


def test_a_load_that_fails_is_a_miss() -> None:
    cache = cache_of(host=10)
    turn(cache, text(60))
    cache.clear("device")
    allocation = cache.admit(cache.lookup(array(text(48))), 1)
    assert allocation is not None
    assert (allocation.cached, allocation.reported) == ({"host": 47}, 48)
    (load,) = moves(cache)
    cache.landed(load, 1)
    assert (allocation.cached, allocation.reported) == ({"host": 16}, None)
    assert [type(move) for move in moves(cache)] == [Drop]
    assert device(cache, text(60)) == 16
    # What was computed instead is offered again.
    cache.commit(allocation, array(text(48)))
    assert [len(move.keys) for move in moves(cache)] == [2]
    cache.release(allocation)
    cache.check_integrity()
    assert host(cache, text(48)) == 48


def test_a_save_that_fails_leaves_nothing_to_be_found() -> None:
    cache = cache_of(host=10)
    allocation = cache.admit(cache.lookup(array(text(60))), 1)
    assert allocation is not None
    cache.commit(allocation, array(text(60)))
    (save,) = moves(cache)
    cache.landed(save, 2)
    land_all(cache)
    cache.release(allocation)
    cache.check_integrity()
    assert host(cache, text(60)) == 32


# -- random lives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(36))
def test_random_lives(seed: int) -> None:
    rng = random.Random(seed)
    host, options = rng.choice([0, 16, 60, 200]), {"block_size": rng.choice([1, 4, 4, 16])}
    if host:
        options |= {"host_eviction": rng.choice(["lru", "arc"]), "offload_prompt_only": rng.random() < 0.5}
    walk("vllm-offload" if host else "vllm", options, rng.randint(70, 200), host, seed, MET)


def test_the_lives_have_met_everything() -> None:
    device = ["hit device", "evicted device", "cleared device", "shared", "no room", "preempted"]
    host = ["hit host", "stored host", "loaded host", "evicted host", "failed host", "cleared host"]
    assert missing(MET, device + host) == []
