"""TensorRT-LLM's V1 manager: recorded runs, a naive model, the peculiar rules by hand, and random lives."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longturn.cache import Copy, Drop, Hint, Load, PrefixCache, Save
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.errors import CacheCorruption, ConfigError
from longturn.lab.replay.hits import serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk
from tests.cache.policies.trtllm_naive import NaiveTrtllm
from tests.cache.policies.workload import conversations, reported

T = 32
NOW = [0.0]
MET: Counter[str] = Counter()


def cache_of(blocks: int = 20, host: int = 0, real: bool = False, **options: Any) -> PrefixCache:
    sizes = Sizes(blocks * T, host * T, real=real, clock=lambda: NOW[0])
    return make_policy("trtllm", {"tokens_per_block": T, **options}, sizes)


def turn(cache: PrefixCache, prompt: list[int], output: int = 1, salt: str = "") -> dict[str, int]:
    """One whole request: the tokens reused in each tier."""
    served = serve(cache, array(prompt), array(prompt + text(output, 77)), salt)
    cache.check_integrity()
    assert served is not None
    return {tier: n for tier, n in served[0].items() if n}


def found(cache: PrefixCache, tokens: list[int], salt: str = "") -> int:
    """The cached tokens of a prompt that goes on behind `tokens`."""
    return cache.lookup(array([*tokens, -1]), salt).total


def begin(cache: PrefixCache, prompt: list[int], output: int = 1) -> Any:
    """A request that is running, its prompt computed."""
    allocation = cache.admit(cache.lookup(array(prompt)), output)
    assert allocation is not None
    cache.commit(allocation, array(prompt))
    return allocation


# -- against the engine's rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", recordings("trtllm"))
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


@pytest.mark.parametrize("seed", range(80))
def test_as_the_naive_model_says(seed: int) -> None:
    rng = random.Random(seed)
    size, longest = rng.choice([1, 2, 4, 8, 32]), rng.choice([40, 120])
    blocks = rng.randint(3, longest * 4 // size + 3)
    below = rng.choice([0, 0, 1, 3, blocks, 2 * blocks])
    partial, copy = rng.random() < 0.7, rng.random() < 0.5
    requests = conversations(seed, 50, longest, rng.choice([3, 50]))
    naive = NaiveTrtllm(blocks, size, below, partial=partial, copy=copy)
    options = {"tokens_per_block": size, "partial_reuse": partial, "copy_on_partial_reuse": copy}
    cache = make_policy("trtllm", options, Sizes(blocks * size + rng.randrange(size), below * size))
    assert reported(cache, requests) == [naive.serve(*request) for request in requests]


# -- finding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65, 100])
def test_all_but_the_last_token_of_a_prompt_is_reused(n: int) -> None:
    cache = cache_of()
    turn(cache, text(n))
    assert turn(cache, text(n)).get("device", 0) == n - 1


def test_output_is_kept_with_a_block_that_is_not_full() -> None:
    cache = cache_of()
    turn(cache, text(40), 50)
    assert found(cache, [*text(40), *text(50, 77)]) == 89


def test_only_whole_blocks_of_a_prompt_are_found_while_it_runs() -> None:
    cache = cache_of()
    allocation = cache.admit(cache.lookup(array(text(100))), 10)
    assert allocation is not None
    assert found(cache, text(100)) == 0
    cache.commit(allocation, array(text(70)))
    # The engine stores them when the whole prompt is computed.
    assert found(cache, text(100)) == 0
    cache.commit(allocation, array(text(100)))
    assert found(cache, text(100)) == 96
    cache.release(allocation)
    assert found(cache, text(100)) == 100


def test_without_reuse_in_part_only_equal_blocks_count() -> None:
    cache = cache_of(partial_reuse=False)
    turn(cache, text(50))
    assert [found(cache, text(n)) for n in (49, 50)] == [32, 50]


def test_an_idle_leaf_is_taken_over_and_lost_to_others() -> None:
    cache = cache_of()
    turn(cache, text(50))
    allocation = begin(cache, [*text(40), *text(5, 2)])
    assert allocation.reused == 40
    assert cache.take_transfers() == []
    assert found(cache, text(50)) == 32
    cache.release(allocation)
    # Stored again, with what it holds now.
    assert found(cache, text(50)) == 40
    cache.check_integrity()


@pytest.mark.parametrize("copies", [True, False])
def test_a_block_with_others_below_is_copied_or_not_used(copies: bool) -> None:
    cache = cache_of(copy_on_partial_reuse=copies, real=True)
    turn(cache, text(100))
    allocation = begin(cache, [*text(40), *text(5, 2)])
    moves = cache.take_transfers()
    if not copies:
        assert (allocation.reused, moves) == (32, [])
    else:
        (copy,) = moves
        assert isinstance(copy, Copy)
        assert allocation.reused == 40
        assert (list(copy.source), len(copy.target)) == ([(32, 64)], 8)
        assert list(copy.target) == list(allocation.runs.slice(32, 40))
    assert found(cache, text(100)) == 100
    cache.release(allocation)
    cache.check_integrity()


def test_a_block_in_use_is_copied() -> None:
    cache = cache_of()
    first = begin(cache, text(65))
    second = begin(cache, [*text(50), *text(5, 2)])
    assert second.reused == 50
    assert [type(move) for move in cache.take_transfers()] == [Copy]
    cache.release(first)
    cache.release(second)
    cache.check_integrity()


def test_salts_are_apart() -> None:
    cache = cache_of()
    for salt in map(str, range(12)):
        turn(cache, text(40), salt=salt)
        assert found(cache, text(40), salt) == 40
    assert [found(cache, text(40), salt) for salt in ("", "11", "13")] == [0, 40, 0]


# -- what goes -----------------------------------------------------------------------------------------------------


def test_tails_go_first_in_the_order_of_release() -> None:
    cache = cache_of(blocks=6)
    turn(cache, text(96, 1))
    turn(cache, text(96, 2))
    turn(cache, text(40, 3))
    assert [found(cache, text(96, seed)) for seed in (1, 2, 3)] == [32, 96, 40]


def test_a_block_that_goes_takes_all_below_it() -> None:
    cache = cache_of(blocks=6)
    turn(cache, text(128))
    # The first block is worth less than those that follow it.
    assert cache.hint(Hint("priority", array(text(128)), 0, 32, level=-10)) == 32
    turn(cache, text(90, 2))
    assert found(cache, text(128)) == 0
    assert cache.state().tiers[0].used == 3 * T
    cache.check_integrity()


def test_copies_of_what_is_there_already_are_stale() -> None:
    cache = cache_of(blocks=8)
    first, second = (cache.admit(cache.lookup(array(text(65))), 1) for _ in range(2))
    for one in (first, second):
        assert one is not None
        cache.commit(one, array(text(65)))
    assert second.where.anchored == 0
    cache.release(second)
    # Of its blocks only the last token's, the third, is in the cache beside those of the first request.
    assert cache.state().tiers[0].used == 4 * T
    cache.release(first)
    assert cache.state().tiers[0].used == 3 * T
    cache.check_integrity()


def test_a_request_waits_until_all_its_output_will_fit() -> None:
    cache = cache_of(blocks=6)
    first = begin(cache, text(40), 80)
    assert cache.admit(cache.lookup(array(text(40, 1))), 30) is None
    second = cache.admit(cache.lookup(array(text(40, 1))), 24)
    assert second is not None
    assert cache.extend(first, 120)
    assert cache.extend(second, 64)
    assert not cache.extend(second, 65)
    cache.check_integrity()


def test_blocks_that_are_in_use_need_no_room() -> None:
    cache = cache_of(blocks=4)
    first = begin(cache, text(65))
    second = cache.admit(cache.lookup(array([*text(64), 1])), 31)
    assert second is not None
    assert cache.admit(cache.lookup(array([*text(64), 2])), 1) is None
    cache.release(first)
    cache.release(second)
    cache.check_integrity()


# -- priorities ----------------------------------------------------------------------------------------------------


def test_what_is_pinned_goes_last_for_its_time() -> None:
    NOW[0] = 0.0
    cache = cache_of(blocks=6)
    turn(cache, text(64, 1))
    assert cache.hint(Hint("pin", array(text(65, 1)), seconds=10)) == 64
    for seed in (2, 3):
        turn(cache, text(128, seed))
    assert [found(cache, text(64, 1)), found(cache, text(128, 2))] == [64, 0]
    NOW[0] = 10.0
    # Its time has ended, and it has gone to the back, behind the other.
    turn(cache, text(64, 4))
    assert [found(cache, text(64, 1)), found(cache, text(128, 3))] == [64, 64]
    turn(cache, text(128, 5))
    assert found(cache, text(64, 1)) == 0


def test_a_time_begins_anew_when_its_block_is_idle_again() -> None:
    NOW[0] = 0.0
    cache = cache_of(blocks=4)
    turn(cache, text(64, 1))
    cache.hint(Hint("expect", array(text(65, 1)), seconds=10))
    NOW[0] = 9.0
    turn(cache, text(64, 1))
    NOW[0] = 15.0
    turn(cache, text(64, 2))
    turn(cache, text(64, 3))
    assert found(cache, text(64, 1)) == 64
    NOW[0] = 20.0
    turn(cache, text(64, 4))
    turn(cache, text(64, 5))
    assert found(cache, text(64, 1)) == 0


@pytest.mark.parametrize("kind", ["release", "supersede"])
def test_what_is_released_goes_first(kind: Any) -> None:
    cache = cache_of(blocks=6)
    turn(cache, text(64, 1))
    turn(cache, text(96, 2))
    assert cache.hint(Hint(kind, array(text(96, 2)), 40, 96)) == 32
    turn(cache, text(64, 3))
    assert [found(cache, text(64, 1)), found(cache, text(96, 2))] == [64, 64]


def test_blocks_of_low_priority_are_not_worth_a_place_on_the_host() -> None:
    for level, kept in ((-6, 0), (-5, 64)):
        cache = cache_of(blocks=3, host=4)
        turn(cache, text(64, 1))
        cache.hint(Hint("priority", array(text(64, 1)), level=level))
        turn(cache, text(90, 2))
        assert cache.lookup(array([*text(64, 1), -1])).host == kept


# -- host memory ---------------------------------------------------------------------------------------------------


def test_blocks_change_places_with_the_host() -> None:
    cache = cache_of(blocks=4, host=4)
    turn(cache, text(96, 1))
    turn(cache, text(96, 2))
    hit = cache.lookup(array([*text(96, 1), -1]))
    assert (hit.device, hit.host) == (32, 64)
    assert turn(cache, [*text(96, 1), -1]) == {"device": 32, "host": 64}
    # It is not on the host any more: only what had to make room is. Two places there are empty, but in the queue they
    # are behind the other's deepest block, which therefore was lost for the third that went down.
    assert cache.lookup(array([*text(96, 1), -1])).host == 0
    assert cache.lookup(array([*text(96, 2), -1])).host == 64
    assert cache.state().tiers[1].used == 2 * T


def test_moves_are_listed_in_order_and_name_their_pages() -> None:
    cache = cache_of(blocks=3, host=3, real=True)
    turn(cache, text(90, 1))
    one = begin(cache, text(90, 2))
    (save,) = cache.take_transfers()
    assert isinstance(save, Save)
    assert (len(set(save.keys)), list(save.runs), save.tiers) == (3, [(64, 96), (32, 64), (0, 32)], ("host",))
    cache.release(one)
    two = cache.admit(cache.lookup(array([*text(32, 1), -1])), 1)
    assert two is not None
    assert two.cached == {"host": 32}
    drop, down, load, gone, drop_too, down_too = cache.take_transfers()
    deepest, middle, head = save.keys
    # For the first block the other's deepest goes down, and the page that was oldest there makes room for it.
    assert isinstance(drop, Drop)
    assert isinstance(down, Save)
    assert (list(drop.keys), len(down.keys)) == ([deepest], 1)
    assert isinstance(load, Load)
    assert (list(load.keys), list(load.runs), load.first) == ([head], list(two.runs.slice(0, 32)), 0)
    assert list(down.runs) == list(load.runs)
    # What came up leaves the host. Then room for the second block, which is new.
    assert (type(gone), list(gone.keys)) == (Drop, [head])
    assert (type(drop_too), list(drop_too.keys), type(down_too)) == (Drop, [middle], Save)
    cache.release(two)
    cache.check_integrity()


def test_bringing_up_one_block_may_push_out_a_later_one() -> None:
    cache = cache_of(blocks=3, host=3)
    turn(cache, text(90, 1))
    turn(cache, text(90, 2))
    hit = cache.lookup(array([*text(90, 1), -1]))
    assert hit.host == 90
    allocation = cache.admit(hit, 1)
    assert allocation is not None
    # The deepest block is the oldest on the host: its place was needed for the first.
    assert allocation.cached == {"host": 64}
    cache.release(allocation)
    cache.check_integrity()


def test_a_block_of_the_host_that_cannot_be_taken_over_is_copied_from_there() -> None:
    cache = cache_of(blocks=4, host=8, real=True)
    turn(cache, text(96, 1))
    turn(cache, text(120, 2))
    assert cache.lookup(array([*text(96, 1), -1])).host == 96
    cache.take_transfers()
    allocation = begin(cache, [*text(40, 1), *text(5, 3)])
    assert allocation.cached == {"host": 40}
    loads = [move for move in cache.take_transfers() if isinstance(move, Load)]
    assert [(load.first, len(load.runs)) for load in loads] == [(0, 32), (32, 8)]
    for load in loads:
        cache.landed(load, 1)
    cache.release(allocation)
    assert found(cache, text(96, 1)) == 96
    cache.check_integrity()


def test_a_load_that_fails_is_a_miss() -> None:
    cache = cache_of(blocks=5, host=8)
    turn(cache, text(96, 1))
    turn(cache, text(150, 2))
    allocation = cache.admit(cache.lookup(array([*text(96, 1), -1])), 1)
    assert allocation is not None
    assert allocation.cached == {"host": 96}
    # Nobody else counts on what is on its way.
    other = cache.lookup(array([*text(96, 1), -1]))
    assert (other.total, other.arriving) == (0, True)
    for move in cache.take_transfers():
        cache.landed(move, 1 if isinstance(move, Load) else len(move.keys))
    assert allocation.reused == 32
    assert found(cache, text(96, 1)) == 32
    cache.commit(allocation, array([*text(96, 1), -1]))
    cache.release(allocation)
    assert found(cache, text(96, 1)) == 96
    cache.check_integrity()


def test_a_save_that_fails_leaves_nothing_to_be_found() -> None:
    cache = cache_of(blocks=5, host=8)
    turn(cache, text(96, 1))
    one = begin(cache, text(150, 2))
    (save,) = (move for move in cache.take_transfers() if isinstance(move, Save))
    # The deepest block went first.
    assert len(save.keys) == 3
    cache.landed(save, 2)
    assert found(cache, text(96, 1)) == 0
    cache.release(one)
    cache.check_integrity()


def test_what_is_cleared_is_gone_from_its_tier() -> None:
    cache = cache_of(blocks=5, host=8)
    turn(cache, text(96, 1))
    turn(cache, text(150, 2))
    assert {tier.name: tier.used // T for tier in cache.state().tiers} == {"device": 5, "host": 3}
    assert cache.clear("host") == 96
    assert [type(move) for move in cache.take_transfers()] == [Drop]
    assert [found(cache, text(96, 1)), found(cache, text(150, 2))] == [0, 150]
    assert cache.clear("device") == 160
    assert [tier.used for tier in cache.state().tiers] == [0, 0]
    cache.check_integrity()


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokens_per_block"):
        make_policy("trtllm", {}, Sizes(31))


def test_check_integrity_finds_what_is_broken() -> None:
    cache: Any = cache_of()
    allocation = begin(cache, text(70))
    cache.check_integrity()
    memory, blocks = cache._memory, allocation.where.blocks
    memory.refs[blocks[0]] += 1
    with pytest.raises(CacheCorruption, match="block 0 is used"):
        cache.check_integrity()
    memory.refs[blocks[0]] -= 1
    memory._place[:2] = 1
    with pytest.raises(CacheCorruption, match="same place"):
        cache.check_integrity()
    memory._place[:2] = [0, 1]
    memory.trie.detach(blocks[:1])
    with pytest.raises(CacheCorruption, match="lost a block"):
        cache.check_integrity()
    memory._priority[np.arange(10, 20)] = 40
    with pytest.raises(CacheCorruption, match="queue of priority"):
        cache.check_integrity()


# -- random lives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(36))
def test_random_lives(seed: int) -> None:
    rng = random.Random(seed)
    options = {
        "tokens_per_block": rng.choice([1, 2, 4, 8]),
        "partial_reuse": rng.random() < 0.7,
        "copy_on_partial_reuse": rng.random() < 0.7,
    }
    walk("trtllm", options, rng.randint(70, 200), rng.choice([0, 16, 60, 200]), seed, MET)


def test_the_lives_have_met_everything() -> None:
    device = ["hit device", "evicted device", "cleared device", "shared", "no room"]
    host = ["hit host", "stored host", "loaded host", "evicted host", "failed host", "cleared host"]
    assert missing(MET, device + host) == []
