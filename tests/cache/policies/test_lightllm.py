"""LightLLM: requests enter the tree when they end, dead tails go first, host pages hold prompts only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longturn.cache import Allocation, Drop, Load, Save
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.lightllm import LightLLMCache, LightLLMOptions
from longturn.cache.policies.lightllm_host import HostPages
from longturn.cache.policies.registry import make_policy
from longturn.errors import ConfigError
from longturn.lab.replay.hits import land_all, serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk

MET: Counter[str] = Counter()
PAGE = 64


def cache_of(device: int = 1000, host: int = 0, real: bool = False, chunk: int = 8192) -> LightLLMCache:
    return LightLLMCache(LightLLMOptions(chunk, PAGE), Sizes(device, host, real=real))


def turn(cache: LightLLMCache, tokens: list[int], output: int = 1) -> dict[str, int]:
    """One request from beginning to end: what was cached in which tier."""
    served = serve(cache, array(tokens), array(tokens + text(output, 77)))
    assert served is not None
    cache.check_integrity()
    return {tier: n for tier, n in served[0].items() if n}


def found(cache: LightLLMCache, tokens: list[int], salt: str = "") -> tuple[int, int]:
    hit = cache.lookup(array(tokens), salt)
    return hit.device, hit.host


def start(cache: LightLLMCache, tokens: list[int], output: int = 1, salt: str = "") -> Allocation:
    allocation = cache.admit(cache.lookup(array(tokens), salt), output)
    assert allocation is not None
    return allocation


def finish(cache: LightLLMCache, allocation: Allocation, tokens: list[int]) -> None:
    assert cache.extend(allocation, len(tokens))
    cache.commit(allocation, array(tokens))
    cache.release(allocation)
    cache.check_integrity()


@pytest.mark.parametrize("path", recordings("lightllm"))
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


def test_the_last_token_of_a_prompt_is_computed() -> None:
    cache = cache_of()
    assert turn(cache, text(40)) == {}
    assert turn(cache, text(40)) == {"device": 39}
    assert turn(cache, text(1)) == {}


def test_an_answer_is_kept_to_its_last_token_by_replays_only() -> None:
    cache = cache_of()
    turn(cache, text(40), output=5)
    assert found(cache, text(40) + text(5, 77) + [1]) == (45, 0)
    assert not cache_of(real=True).overlap


def test_nothing_is_found_before_a_request_ends() -> None:
    cache = cache_of()
    one, two = start(cache, text(40)), start(cache, text(40))
    for allocation in (one, two):
        assert cache.extend(allocation, 40)
        cache.commit(allocation, array(text(40)))
    assert found(cache, text(40)) == (0, 0)
    finish(cache, one, text(40))
    assert found(cache, text(40)) == (39, 0)
    finish(cache, two, text(40))
    # The second copy was freed.
    assert cache.state().tiers[0].used == 40


def test_a_cancelled_request_leaves_what_it_has_computed() -> None:
    cache = cache_of()
    allocation = start(cache, text(40))
    assert cache.extend(allocation, 40)
    cache.commit(allocation, array(text(25)))
    cache.release(allocation)
    cache.check_integrity()
    assert found(cache, text(40)) == (25, 0)
    cache.release(start(cache, text(10, 1)))
    assert cache.state().tiers[0].used == 25


def test_whole_leaves_go_least_recent_first() -> None:
    cache = cache_of(100)
    for seed in (1, 2, 3):
        turn(cache, text(29, seed))
    turn(cache, text(29, 1))
    # 10 are free: 2 goes, and all of it, for a shortfall of one.
    turn(cache, text(10, 4))
    assert [found(cache, text(29, seed))[0] for seed in (1, 2, 3)] == [28, 0, 28]
    assert cache.state().tiers[0].used == 71


def test_the_dead_tail_of_a_cut_is_as_old_as_before() -> None:
    cache = cache_of(80)
    turn(cache, text(20) + text(19, 1))
    turn(cache, text(19, 2))
    # The first is cut, and its tail is older than the second.
    turn(cache, text(20) + text(10, 3))
    turn(cache, text(19, 4))
    assert found(cache, text(20) + text(19, 1))[0] == 20
    assert found(cache, text(19, 2))[0] == 18


def test_the_dead_tail_of_an_answer_is_as_old_as_before() -> None:
    cache = cache_of(80)
    prompt = text(20)
    for answer in (text(20, 1), None, text(10, 2)):
        whole = prompt + answer if answer else text(20, 3)
        assert serve(cache, array(prompt if answer else whole), array(whole)) is not None
    turn(cache, text(19, 4))
    assert found(cache, prompt + text(20, 1))[0] == 20
    assert found(cache, prompt + text(20, 2))[0] == 30
    assert found(cache, text(20, 3))[0] == 19


def test_parents_become_leaves() -> None:
    cache = cache_of(100)
    turn(cache, text(40) + text(9, 1))
    turn(cache, text(40) + text(9, 2))
    turn(cache, text(90, 3))
    assert found(cache, text(40)) == (0, 0)
    assert cache.state().tiers[0].used == 91


def test_a_running_request_keeps_what_it_found() -> None:
    cache = cache_of(100)
    turn(cache, text(40) + text(20, 1))
    running = start(cache, [*text(50), 7])
    assert cache.lookup(array(text(90, 2))).total == 0
    # Its 40 tokens stay, and so does the room for the rest of its prompt.
    assert cache.admit(cache.lookup(array(text(50, 2))), 1) is None
    other = start(cache, text(49, 2))
    assert cache.extend(other, 49)
    assert found(cache, text(40) + text(20, 1))[0] == 40
    finish(cache, running, [*text(50), 7])
    cache.release(other)
    assert found(cache, text(60))[0] == 50


def test_a_step_without_room_is_told_so() -> None:
    cache = cache_of(100)
    one, two = start(cache, text(50, 1)), start(cache, text(50, 2))
    assert cache.extend(one, 50)
    assert cache.extend(two, 50)
    assert not cache.extend(one, 51)
    cache.commit(two, array(text(50, 2)))
    cache.release(two)
    assert cache.extend(one, 51)
    assert cache.longest == 99


def test_host_pages_are_loaded_for_a_gain_of_128_tokens_and_prompts_of_256() -> None:
    cache = cache_of(2000, 2000)
    turn(cache, text(400))
    assert cache.state().tiers[1].used == 6 * PAGE
    for known, loaded in ((256, 128), (257, 0)):
        cache.clear("device")
        turn(cache, text(known))
        assert found(cache, text(400)) == (known, loaded)
    cache.clear("device")
    assert found(cache, text(255)) == (0, 0)
    assert found(cache, text(256)) == (0, 3 * PAGE)
    assert turn(cache, text(400)) == {"host": 6 * PAGE}


def test_host_pages_hold_prompts_only() -> None:
    cache = cache_of(2000, 2000)
    turn(cache, text(300), output=200)
    cache.clear("device")
    whole = text(300) + text(200, 77)
    assert found(cache, [*whole, 1]) == (0, 4 * PAGE)
    # The answer gets there as part of the next prompt.
    turn(cache, [*whole, 1])
    cache.clear("device")
    assert found(cache, [*whole, 1]) == (0, 7 * PAGE)


@pytest.mark.parametrize(("known", "device"), [(text(0), 0), (text(100), 100), (text(100) + text(50, 2), 100)])
def test_host_pages_that_do_not_fit_are_not_loaded(known: list[int], device: int) -> None:
    cache = cache_of(700, 2000)
    turn(cache, text(400))
    cache.clear("device")
    if known:
        finish(cache, start(cache, known), known)
        land_all(cache)
    # Besides what is running, 384 tokens must fit; what is on the device already is not to be evicted for it.
    for busy, loaded in ((316, 384 - device), (317, 0)):
        running = start(cache, text(busy, 1))
        assert cache.extend(running, busy)
        assert found(cache, text(400)) == (device, loaded)
        cache.release(running)


def test_host_pages_that_match_are_the_newest() -> None:
    cache = cache_of(2000, 6 * PAGE)
    turn(cache, text(257, 1))
    turn(cache, text(129, 2))
    cache.clear("device")
    # It ends before anything was computed, so nothing was copied.
    cache.release(start(cache, text(257, 1)))
    land_all(cache)
    turn(cache, text(129, 3))
    cache.clear("device")
    assert [found(cache, text(257, seed))[1] for seed in (1, 2, 3)] == [256, 0, 128]


def test_a_load_takes_the_device_part_of_the_first_page_from_the_device() -> None:
    cache = cache_of(2000, 2000)
    turn(cache, text(400))
    cache.clear("device")
    finish(cache, start(cache, text(100)), text(100))
    land_all(cache)
    allocation = start(cache, text(400))
    (load,) = cache.take_transfers()
    assert isinstance(load, Load)
    assert (len(load.keys), load.skip, load.first, len(load.runs)) == (5, 100 - PAGE, 100, 284)
    assert allocation.cached == {"device": 100, "host": 284}


def test_pages_that_are_lost_are_computed() -> None:
    for landed, cached, pages in ((0, 100, 1), (1, 128, 2), (3, 256, 4)):
        cache = cache_of(2000, 2000)
        turn(cache, text(400))
        cache.clear("device")
        finish(cache, start(cache, text(100)), text(100))
        land_all(cache)
        allocation = start(cache, text(400))
        (load,) = cache.take_transfers()
        cache.landed(load, landed)
        assert allocation.reused == cached
        assert cache.state().tiers[1].used == pages * PAGE
        cache.check_integrity()
        cache.release(allocation)
        assert found(cache, text(400))[0] == cached


def test_pages_under_way_are_not_left_to_the_tree() -> None:
    cache = cache_of(2000, 2000)
    turn(cache, text(400))
    cache.clear("device")
    allocation = start(cache, text(400))
    (load,) = cache.take_transfers()
    cache.release(allocation)
    cache.check_integrity()
    assert cache.state().tiers[0].used == 0
    cache.landed(load, 2)
    assert found(cache, text(400)) == (0, 2 * PAGE)
    assert cache.state().tiers[1].used == 2 * PAGE


def test_pages_that_could_not_be_saved_are_forgotten() -> None:
    cache = cache_of(2000, 2000)
    finish(cache, start(cache, text(400)), text(400))
    (save,) = cache.take_transfers()
    assert isinstance(save, Save)
    cache.landed(save, 4)
    assert cache.state().tiers[1].used == 4 * PAGE
    assert [type(move) for move in cache.take_transfers()] == [Drop]
    cache.clear("device")
    assert found(cache, text(400)) == (0, 4 * PAGE)


def test_a_page_goes_with_no_regard_to_those_behind_it() -> None:
    cache = cache_of(4000, 6 * PAGE)
    turn(cache, text(300, 1))
    turn(cache, text(200, 2))
    cache.clear("device")
    # 4 + 3 pages do not fit: the first page of the first prompt has gone, and what lies behind it is of no use.
    assert found(cache, text(300, 1)) == (0, 0)
    assert cache.state().tiers[1].used == 6 * PAGE


def test_the_order_of_host_pages() -> None:
    keys = [bytes([i]) for i in range(10)]
    host = HostPages(3)
    assert host.keep(keys[:3]) == ([0, 1, 2], [])
    assert host.match(keys) == 3
    host.touch(keys[:1])
    # Page 1 is the oldest now. A page of this very request may make way before its turn has come.
    assert host.keep([keys[5], keys[1]]) == ([0, 1], [keys[1], keys[2]])
    assert host.match([keys[0], keys[2]]) == 1
    assert host.lose([keys[0], keys[2]]) == [keys[0]]
    assert host.match([keys[0], keys[1]]) == 0
    # What comes back is in front of what was left.
    assert host.keep([keys[0]]) == ([0], [])
    assert host.match([keys[0], keys[1]]) == 2
    assert host.clear() == [keys[5], keys[1], keys[0]]
    # None is left for the fourth: the first ones of the same request are in use.
    assert host.keep(keys[:5]) == ([0, 1, 2], [])
    assert host.keep(keys[1:6]) == ([2], [keys[0]])
    host.check()


def test_salts_are_kept_apart() -> None:
    cache = cache_of(2000, 2000)
    finish(cache, start(cache, text(400), salt="a"), text(400))
    land_all(cache)
    assert found(cache, text(400), "b") == (0, 0)
    assert found(cache, text(400), "a") == (399, 0)
    cache.clear("device")
    assert found(cache, text(400), "b") == (0, 0)
    assert found(cache, text(400), "a") == (0, 6 * PAGE)


def test_options() -> None:
    cache = make_policy("lightllm", {}, Sizes(100, 16, unit=64))
    assert (cache.chunk_tokens, cache.page_size, cache.overlap, cache.longest) == (128, 4, True, 99)
    # Without room for a page there is no host tier.
    assert [tier.name for tier in make_policy("lightllm", {}, Sizes(100, 255)).state().tiers] == ["device"]
    options: dict[str, Any]
    for options in ({"host_page_size": 0}, {"chunked_prefill_size": 0}):
        with pytest.raises(ConfigError, match="positive"):
            make_policy("lightllm", options, Sizes(100))


@pytest.mark.parametrize("seed", range(60))
def test_random_lives(seed: int) -> None:
    options = {"chunked_prefill_size": (640, 8192)[seed % 2]}
    walk("lightllm", options, 30 + 37 * seed % 200, (0, 16, 64, 400)[seed % 4], seed, MET, unit=64)


def test_the_lives_have_met_everything() -> None:
    wanted = [f"{kind} {tier}" for kind in ("hit", "evicted", "cleared") for tier in ("device", "host")]
    assert missing(MET, [*wanted, "stored host", "loaded host", "failed host", "no room", "preempted", "shared"]) == []
