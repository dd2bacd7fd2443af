"""SGLang's tree on the device: what it reuses, what it evicts, and in which order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longturn.cache import Allocation, Hint
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.cache.policies.sglang import SGLangCache, SGLangOptions
from longturn.errors import CacheCorruption, ConfigError
from longturn.lab.replay.hits import serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk

MET: Counter[str] = Counter()


def cache_of(device: int, classic: bool = False, real: bool = False, **options: Any) -> SGLangCache:
    return SGLangCache(SGLangOptions(**options), Sizes(device, real=real), classic=classic)


def turn(cache: SGLangCache, prompt: list[int], answer: list[int] | None = None, salt: str = "") -> int | None:
    """One request from beginning to end: its cached tokens, None when it is refused."""
    served = serve(cache, array(prompt), array(prompt + (answer or [7])), salt)
    cache.check_integrity()
    return None if served is None else served[1]


def found(cache: SGLangCache, tokens: list[int], salt: str = "") -> int:
    """How many of `tokens` are in the tree; nothing is stamped."""
    return cache.lookup(array([*tokens, -1]), salt).device


def begin(cache: SGLangCache, prompt: list[int], output: int = 5) -> Allocation:
    allocation = cache.admit(cache.lookup(array(prompt)), output)
    assert allocation is not None
    return allocation


@pytest.mark.parametrize("path", [*recordings("sglang"), *recordings("sglang-classic")])
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


@pytest.mark.parametrize(("page", "cached"), [(1, 63), (16, 48), (64, 0)])
def test_the_last_token_is_computed_and_only_whole_pages_are_reused(page: int, cached: int) -> None:
    cache = cache_of(1024, page_size=page)
    assert turn(cache, text(64)) == 0
    assert turn(cache, text(64)) == cached
    assert turn(cache, text(64) + text(70, 2)) == 64
    # A page that differs is not shared at all.
    assert turn(cache, [*text(63), 999, *text(70, 2)]) == 63 - 63 % page


def test_an_answer_is_reused_but_for_its_last_token() -> None:
    cache = cache_of(400)
    turn(cache, text(50), text(20, 2))
    assert turn(cache, text(50) + text(20, 2) + text(9, 3)) == 69


def test_a_whole_leaf_goes_for_one_token() -> None:
    cache = cache_of(202)
    turn(cache, text(100, 1))
    turn(cache, text(60, 2))
    assert turn(cache, text(43, 3)) == 0
    assert [found(cache, text(100, 1)), found(cache, text(60, 2)), found(cache, text(43, 3))] == [0, 60, 43]


def test_smaller_nodes_keep_more() -> None:
    cache = cache_of(202, chunked_prefill_size=25)
    turn(cache, text(100, 1))
    turn(cache, text(60, 2))
    turn(cache, text(43, 3))
    assert [found(cache, text(100, 1)), found(cache, text(60, 2))] == [75, 60]


def test_only_the_shortfall_is_evicted_and_by_the_classic_engine_the_whole_need() -> None:
    for classic, left in ((False, [0, 30, 30]), (True, [0, 0, 30])):
        cache = cache_of(100, classic)
        for seed in (1, 2, 3):
            turn(cache, text(30, seed))
        # Ten tokens are free: twenty or thirty must go.
        turn(cache, text(31, 4))
        assert [found(cache, text(30, seed)) for seed in (1, 2, 3)] == left


def test_the_dead_end_of_a_cut_node_outlives_newer_ones() -> None:
    cache = cache_of(302)
    turn(cache, text(100, 1))
    turn(cache, text(100, 2))
    turn(cache, text(50, 1) + text(10, 3))
    turn(cache, text(100, 4))
    assert found(cache, text(100, 2)) == 0
    assert found(cache, text(100, 1)) == 100


def test_an_answer_can_go_without_its_prompt() -> None:
    cache = cache_of(122)
    turn(cache, text(40, 1), text(41, 2))
    turn(cache, text(50, 3))
    assert found(cache, text(40, 1) + text(41, 2)) == 40


def test_prompts_are_worth_more_than_answers_by_priority_but_to_the_classic_engine() -> None:
    for eviction, classic, left in (
        ("lru", False, [0, 70]),
        ("priority", False, [30, 30]),
        ("lru", True, [0, 30]),
        ("priority", True, [0, 30]),
    ):
        cache = cache_of(130, classic, eviction=eviction)
        turn(cache, text(30, 1), [7, 7])
        turn(cache, text(30, 2), text(41, 3))
        turn(cache, text(35, 4))
        assert [found(cache, text(30, 1)), found(cache, text(30, 2) + text(40, 3))] == left


def test_a_request_counts_a_node_once_and_the_classic_engine_at_every_insertion() -> None:
    for classic, left in ((False, [0, 30]), (True, [30, 0])):
        cache = cache_of(82, classic, eviction="lfu")
        # Inserted by two requests,
        turn(cache, text(30, 2))
        turn(cache, [*text(30, 2), 5])
        # and twice by one: after its prompt and at its end.
        turn(cache, text(30, 1), text(2, 9))
        turn(cache, text(30, 3))
        assert [found(cache, text(30, 1)), found(cache, text(30, 2))] == left


def test_used_twice_is_protected_by_slru() -> None:
    for eviction, left in (("lru", [0, 30]), ("slru", [30, 0])):
        cache = cache_of(92, eviction=eviction)
        turn(cache, text(31, 1)[:30])
        turn(cache, text(31, 1))
        turn(cache, text(30, 2))
        turn(cache, text(40, 3))
        assert [found(cache, text(30, 1)), found(cache, text(30, 2))] == left


def test_prompts_can_be_shared_after_every_chunk_and_answers_at_the_end() -> None:
    cache = cache_of(400, real=True)
    one = begin(cache, text(100))
    assert found(cache, text(100)) == 0
    assert cache.extend(one, 40)
    cache.commit(one, array(text(40)))
    assert found(cache, text(100)) == 40
    assert cache.extend(one, 100)
    cache.commit(one, array(text(100)))
    assert found(cache, text(100)) == 100
    assert cache.extend(one, 101)
    cache.commit(one, array([*text(100), 7]))
    assert found(cache, [*text(100), 7]) == 100
    cache.release(one)
    assert found(cache, [*text(100), 7]) == 101
    cache.check_integrity()


def test_a_prompt_with_an_answer_of_one_token_enters_when_it_ends() -> None:
    cache = cache_of(400)
    one = begin(cache, text(50), output=1)
    assert cache.extend(one, 50)
    cache.commit(one, array(text(50)))
    assert found(cache, text(50)) == 0
    cache.release(one)
    assert found(cache, text(50)) == 50


def test_who_computes_the_same_moves_to_the_slots_of_the_first() -> None:
    cache = cache_of(200, real=True, page_size=4)
    one, two = begin(cache, text(42)), begin(cache, text(42))
    for allocation in (one, two):
        assert cache.extend(allocation, 42)
        assert cache.state().tiers[0].used == (44 if allocation is one else 88)
    for allocation in (one, two):
        cache.commit(allocation, array(text(42)))
        cache.check_integrity()
    # Forty tokens are shared; each has the page that is not full.
    assert cache.state().tiers[0].used == 48
    assert one.runs.slice(0, 40).runs == two.runs.slice(0, 40).runs
    for allocation in (one, two):
        cache.release(allocation)
    assert cache.state().tiers[0].used == 40


def test_a_decoding_step_makes_room_for_a_page_each_time() -> None:
    cache = cache_of(256, page_size=16)
    turn(cache, text(128, 1))
    one = begin(cache, text(112, 2))
    # The prompt's step asked for a page more than it takes: just that is left, and taken.
    for length in (112, 113):
        assert cache.extend(one, length)
        assert found(cache, text(128, 1)) == 128
    # The next token has its slot, and still a page must be free.
    assert cache.extend(one, 114)
    assert found(cache, text(128, 1)) == 0
    two = cache_of(256, page_size=16)
    turn(two, text(128, 1))
    # One token more, and the prompt's step does not find its page.
    assert two.extend(begin(two, text(113, 2)), 113)
    assert found(two, text(128, 1)) == 0


def test_requests_that_cannot_fit_are_refused() -> None:
    for page, longest in ((1, 98), (16, 79)):
        cache = cache_of(100, page_size=page)
        assert cache.longest == longest
        assert turn(cache, text(longest - 1)) == 0
        assert turn(cache, text(longest, 2)) is None


def test_room_that_admitted_prompts_await_is_not_given_away() -> None:
    cache = cache_of(100)
    one = begin(cache, text(50, 1))
    assert cache.admit(cache.lookup(array(text(44, 2))), 5) is None
    # One token less, and it may.
    assert cache.admit(cache.lookup(array(text(43, 2))), 5) is not None
    assert cache.extend(one, 50)
    cache.check_integrity()


def test_answers_may_outgrow_the_room() -> None:
    cache = cache_of(100)
    one, two = begin(cache, text(40, 1), 30), begin(cache, text(40, 2), 10)
    for allocation in (one, two):
        assert cache.extend(allocation, 40)
    assert [cache.extend(one, 40 + n) for n in range(1, 22)] == [True] * 20 + [False]
    cache.check_integrity()
    cache.release(two)
    assert cache.extend(one, 61)


def test_a_stale_hit_is_looked_up_again() -> None:
    cache = cache_of(102)
    turn(cache, text(50, 1))
    hit = cache.lookup(array(text(50, 1)))
    turn(cache, text(80, 2))
    allocation = cache.admit(hit, 1)
    assert allocation is not None
    assert allocation.reused == 0
    cache.release(allocation)
    cache.check_integrity()


def test_salts_are_kept_apart_and_empty_trees_forgotten() -> None:
    cache = cache_of(100)
    assert turn(cache, text(30), salt="a") == 0
    assert turn(cache, text(30), salt="b") == 0
    assert turn(cache, text(30), salt="a") == 29
    cache.clear("device")
    assert turn(cache, text(30), salt="c") == 0
    assert list(cache._trees) == ["c"]


def test_priority_is_the_only_hint_that_is_known() -> None:
    cache = cache_of(102, eviction="priority")
    turn(cache, text(30, 1))
    turn(cache, text(30, 2))
    assert cache.hint(Hint("pin", array(text(30, 1)))) == 0
    assert cache.hint(Hint("priority", array(text(30, 1)), level=5, salt="nobody's")) == 0
    assert cache.hint(Hint("priority", array(text(30, 1)), level=5)) == 30
    turn(cache, text(60, 3))
    assert [found(cache, text(30, 1)), found(cache, text(30, 2))] == [30, 0]


def test_options() -> None:
    cache = make_policy("sglang", {"page_size": 16, "chunked_prefill_size": "2048"}, Sizes(100, unit=64))
    assert (cache.page_size, cache.chunk_tokens, cache.longest) == (1, 32, 98)
    assert make_policy("sglang", {}, Sizes(100)).chunk_tokens is None
    for wrong in ({"page_size": 0}, {"page_size": 16, "chunked_prefill_size": 24}, {"eviction": "newest"}):
        with pytest.raises(ConfigError):
            make_policy("sglang", wrong, Sizes(1000))
    with pytest.raises(ConfigError, match="no tier"):
        cache.clear("host")


@pytest.mark.parametrize("damage", ["lock", "count", "slot", "queue"])
def test_damage_is_found(damage: str) -> None:
    cache = cache_of(100)
    turn(cache, text(30))
    node = cache._trees[""].match(array(text(30)))[0]
    match damage:
        case "lock":
            node.locks += 1
        case "count":
            cache._tree_tokens -= 1
        case "slot":
            cache._pool.allocate(1)
        case "queue":
            cache._victims.withdraw(node)
    with pytest.raises(CacheCorruption):
        cache.check_integrity()


@pytest.mark.parametrize("seed", range(50))
def test_random_lives(seed: int) -> None:
    options = {
        "page_size": (1, 2, 4)[seed % 3],
        "eviction": ("lru", "lfu", "slru", "priority", "fifo")[seed % 5],
        "chunked_prefill_size": (0, 8)[seed % 2],
    }
    walk("sglang-classic" if seed % 4 == 3 else "sglang", options, 60 + 37 * seed % 200, 0, seed, MET)


def test_the_lives_have_met_everything() -> None:
    assert missing(MET, ["hit device", "evicted device", "cleared device", "no room", "shared"]) == []
