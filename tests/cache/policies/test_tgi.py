"""TGI: prompts only, all room up front, leaves that lose their tail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from longturn.cache import Allocation
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.cache.policies.tgi import TgiCache, TgiOptions
from longturn.errors import ConfigError
from longturn.lab.replay.hits import serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk

MET: Counter[str] = Counter()


def cache_of(device: int = 1000, block: int = 1) -> TgiCache:
    return TgiCache(TgiOptions(block), Sizes(device))


def turn(cache: TgiCache, tokens: list[int], output: int = 1) -> int:
    """One request from beginning to end: the tokens that were cached."""
    served = serve(cache, array(tokens), array(tokens + text(output, 77)))
    assert served is not None
    cache.check_integrity()
    return served[1]


def found(cache: TgiCache, tokens: list[int], salt: str = "") -> int:
    return cache.lookup(array(tokens), salt).device


def start(cache: TgiCache, tokens: list[int], output: int = 1, salt: str = "") -> Allocation | None:
    return cache.admit(cache.lookup(array(tokens), salt), output)


def finish(cache: TgiCache, allocation: Allocation | None, tokens: list[int]) -> None:
    assert allocation is not None
    cache.commit(allocation, array(tokens))
    cache.release(allocation)
    cache.check_integrity()


@pytest.mark.parametrize("path", recordings("tgi"))
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


def test_answers_are_never_kept() -> None:
    cache = cache_of()
    assert turn(cache, text(40), output=10) == 0
    assert turn(cache, text(40) + text(10, 77) + [1], output=10) == 40
    assert cache.state().tiers[0].used == 51


def test_the_last_token_of_a_known_prompt_is_computed() -> None:
    cache = cache_of()
    turn(cache, text(40))
    assert turn(cache, text(40)) == 39
    assert turn(cache, text(20)) == 19
    assert turn(cache, text(1)) == 0


def test_whole_blocks_only() -> None:
    cache = cache_of(103, block=8)
    assert cache.longest == 96
    turn(cache, text(30))
    assert cache.state().tiers[0].used == 24
    assert turn(cache, text(30)) == 24
    assert turn(cache, text(23)) == 16
    assert turn(cache, text(24)) == 23
    assert turn(cache, text(7)) == 0
    # A first block that differs in its last token is another child.
    assert turn(cache, [*text(7), 5, *text(8, 1)]) == 0
    assert turn(cache, [*text(7), 5, *text(8, 1)]) == 15


def test_nothing_is_found_before_a_request_ends() -> None:
    cache = cache_of()
    one, two = start(cache, text(40)), start(cache, text(40))
    assert one is not None
    cache.commit(one, array(text(40)))
    assert found(cache, text(40)) == 0
    finish(cache, one, text(40))
    assert found(cache, text(40)) == 39
    finish(cache, two, text(40))
    # The first copy wins.
    assert cache.state().tiers[0].used == 40


def test_all_room_is_taken_up_front() -> None:
    for block, used in ((1, 69), (8, 72)):
        cache = cache_of(104, block)
        running = start(cache, text(40), output=30)
        assert cache.state().tiers[0].used == used
        assert running is not None
        assert cache.extend(running, 69)
        assert not cache.extend(running, used + 1)
        assert start(cache, text(20, 1), output=20) is None
        assert start(cache, text(20, 1), output=10) is not None


def test_a_request_that_waits_has_evicted_all_the_same() -> None:
    cache = cache_of(100)
    turn(cache, text(30, 1))
    running = start(cache, text(40, 2), output=21)
    assert found(cache, text(30, 1)) == 29
    assert start(cache, text(50, 3)) is None
    assert found(cache, text(30, 1)) == 0
    assert cache.state().tiers[0].used == 60
    finish(cache, running, text(40, 2))
    assert start(cache, text(50, 3)) is not None


def test_a_leaf_loses_its_tail() -> None:
    cache = cache_of(100)
    for seed in (1, 2, 3):
        turn(cache, text(30, seed))
    turn(cache, text(30, 1))
    turn(cache, text(25, 4))
    assert [found(cache, text(30, seed)) for seed in (1, 2, 3)] == [29, 15, 29]
    # What is left of it is as old as before, and goes next.
    turn(cache, text(20, 5))
    assert [found(cache, text(30, seed)) for seed in (1, 2, 3)] == [29, 0, 25]


def test_the_dead_tail_of_a_cut_is_as_recent_as_the_new_branch() -> None:
    cache = cache_of(80)
    turn(cache, text(20) + text(20, 1))
    turn(cache, text(20, 2))
    # 10 more for the new branch; the first prompt's tail stays behind, refreshed.
    turn(cache, text(20) + text(10, 3))
    turn(cache, text(20, 4))
    assert found(cache, text(20) + text(20, 1)) == 39
    assert found(cache, text(20, 2)) == 10


def test_of_equally_recent_leaves_the_lower_place_goes_first() -> None:
    cache = cache_of(100)
    turn(cache, text(20) + text(20, 1))
    turn(cache, text(20) + text(10, 2))
    # The tail has place 2, the upper part 3 and the new branch 4.
    turn(cache, text(60, 3))
    assert (found(cache, text(20) + text(20, 1)), found(cache, text(20) + text(10, 2))) == (30, 29)


def test_places_that_became_free_are_taken_again_the_latest_first() -> None:
    cache = cache_of(100)
    for tokens in (text(20, 8), text(20) + text(20, 1), text(20, 9)):
        turn(cache, tokens)
    # Places 2 and 4 become free. The upper part of the cut takes 4, and the new branch 2, before the tail's 3.
    turn(cache, text(20) + text(10, 2), output=51)
    turn(cache, text(60, 3))
    assert (found(cache, text(20) + text(20, 1)), found(cache, text(20) + text(10, 2))) == (39, 20)


def test_a_node_in_use_keeps_its_tail() -> None:
    cache = cache_of(100)
    turn(cache, text(80))
    running = start(cache, text(10) + text(5, 1))
    # 70 tokens that the request has not asked for are locked as well.
    assert start(cache, text(20, 2)) is None
    finish(cache, running, text(10) + text(5, 1))
    # One that ends in that node and needs more than the rest never fits, though nothing runs.
    assert serve(cache, array(text(10) + text(95, 3)), array(text(10) + text(95, 3))) is None
    assert start(cache, text(20, 2)) is not None


def test_a_prompt_whose_own_prefix_is_in_its_way() -> None:
    """20 tokens of a node of 60 are found; the 70 more that are missing do not fit beside it."""
    prompt = text(20) + text(70, 5)
    cache = cache_of(100)
    turn(cache, text(60))
    assert start(cache, prompt) is None
    real = TgiCache(TgiOptions(), Sizes(100, real=True))
    finish(real, start(real, text(60)), text(60))
    other = start(real, [1])
    assert start(real, prompt) is None
    finish(real, other, [1])
    allocation = start(real, prompt)
    assert allocation is not None
    assert allocation.reused == 0
    finish(real, allocation, prompt)
    assert found(real, prompt) == 89


def test_a_prompt_within_a_node_does_not_cut_it() -> None:
    cache = cache_of(104, block=8)
    turn(cache, text(40))
    assert turn(cache, text(21)) == 16
    assert start(cache, text(20)) is not None
    assert cache.state().tiers[0].evictable == 0


def test_a_conversation_lies_in_one_run() -> None:
    cache = make_policy("tgi", {}, Sizes(100, real=True))
    for n in (20, 30, 40):
        allocation = cache.admit(cache.lookup(array(text(n))), 10)
        assert allocation is not None
        assert len(list(allocation.runs)) == 1
        cache.commit(allocation, array(text(n)))
        cache.release(allocation)


def test_cancelled_prompts_are_kept_as_far_as_they_were_computed() -> None:
    cache = cache_of(104, block=8)
    allocation = start(cache, text(40), output=10)
    finish(cache, allocation, text(21))
    assert found(cache, text(40)) == 16
    allocation = start(cache, text(40), output=10)
    assert allocation is not None
    cache.release(allocation)
    cache.check_integrity()
    assert found(cache, text(40)) == 16
    assert cache.state().tiers[0].used == 16


def test_salts_are_kept_apart() -> None:
    cache = cache_of()
    finish(cache, start(cache, text(40), salt="a"), text(40))
    assert found(cache, text(40), "b") == 0
    assert found(cache, text(40), "a") == 39
    finish(cache, start(cache, text(40), salt="b"), text(40))
    assert cache.clear("device") == 80
    cache.check_integrity()


def test_options() -> None:
    cache = make_policy("tgi", {"block_size": 256}, Sizes(99, unit=64))
    assert cache.longest == 96
    for block in (0, 101):
        with pytest.raises(ConfigError, match="block_size"):
            cache_of(100, block)


@pytest.mark.parametrize("seed", range(60))
def test_random_lives(seed: int) -> None:
    walk("tgi", {"block_size": (1, 1, 4)[seed % 3]}, 30 + 37 * seed % 200, 0, seed, MET)


def test_the_lives_have_met_everything() -> None:
    assert missing(MET, ["hit device", "evicted device", "cleared device", "no room", "shared"]) == []
