"""LMDeploy's three caches: recorded runs, naive models, the peculiar rules by hand, and random lives."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longturn.cache import Copy, PrefixCache
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.lmdeploy import BlockTree
from longturn.cache.policies.registry import make_policy
from longturn.errors import CacheCorruption, ConfigError
from longturn.lab.replay.hits import serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.lmdeploy_naive import NaiveClassic, NaivePyTorch, NaiveTurboMind
from tests.cache.policies.machine import missing, walk

TURBOMIND, CLASSIC, PYTORCH = "lmdeploy-turbomind", "lmdeploy-turbomind-classic", "lmdeploy-pytorch"
ALL = {"cache_generation": "all", "cache_prompt": "all"}
MET: Counter[str] = Counter()


def cache_of(name: str, blocks: int = 100, size: int = 64, real: bool = False, **options: Any) -> PrefixCache:
    return make_policy(name, {"block_size": size, **options}, Sizes(blocks * size, real=real))


def turn(cache: PrefixCache, prompt: list[int], output: list[int], salt: str = "") -> int:
    """One whole request; the tokens that were cached."""
    before = cache.lookup(array(prompt), salt)
    served = serve(cache, array(prompt), array(prompt + output), salt)
    cache.check_integrity()
    assert served is not None
    assert served[1] == before.total
    return served[1]


def found(cache: PrefixCache, tokens: list[int], salt: str = "") -> int:
    """The cached tokens of a prompt that goes on behind `tokens`."""
    return cache.lookup(array([*tokens, -1]), salt).total


def used(cache: PrefixCache) -> int:
    return cache.state().tiers[0].used // cache.page_size


# -- against the engines and the naive models ---------------------------------------------------------------------


@pytest.mark.parametrize("path", [*recordings(TURBOMIND), *recordings(CLASSIC), *recordings(PYTORCH)])
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


@pytest.mark.parametrize("seed", range(240))
def test_as_the_naive_models_say(seed: int) -> None:
    rng = random.Random(seed)
    name, size, capacity = [TURBOMIND, TURBOMIND, CLASSIC, PYTORCH][seed % 4], rng.randint(1, 8), rng.randint(3, 30)
    longest, options = capacity * size, {}
    naive: NaiveTurboMind | NaiveClassic | NaivePyTorch
    if name == TURBOMIND:
        generation, prompts = rng.choice(["auto", "all", "none"]), rng.choice(["auto", "all"])
        options = {"cache_generation": generation, "cache_prompt": prompts}
        naive = NaiveTurboMind(capacity, size, generation, prompts)
    else:
        # Room for what the PyTorch engine takes ahead of need.
        capacity += 16 // size + 2 if name == PYTORCH else 0
        naive = (NaiveClassic if name == CLASSIC else NaivePyTorch)(capacity, size)
    cache = cache_of(name, capacity, size, **options)
    alphabet, history = rng.randint(1, 3), [[0]]
    for _ in range(40):
        prompt = rng.choice(history) if rng.random() < 0.85 else []
        prompt = prompt[: rng.randint(0, len(prompt))] if rng.random() < 0.4 else prompt
        prompt = prompt + [rng.randrange(alphabet) for _ in range(rng.randint(0 if prompt else 1, 2 * size + 2))]
        output = [rng.randrange(alphabet) for _ in range(rng.randint(1, 40 if name == PYTORCH else 2 * size + 2))]
        if len(prompt) + len(output) > longest:
            prompt = prompt[: longest // 2]
            output = output[: longest - len(prompt)]
        assert turn(cache, prompt, output) == naive.serve(prompt, output)
        history.append(prompt + output if rng.random() < 0.7 else prompt)


# -- what is reused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cached"), [(TURBOMIND, 127), (CLASSIC, 64), (PYTORCH, 64)])
def test_a_repeated_prompt_of_whole_blocks(name: str, cached: int) -> None:
    cache = cache_of(name)
    assert turn(cache, text(128), [-1]) == 0
    assert turn(cache, text(128), [-1]) == cached


@pytest.mark.parametrize(
    ("name", "options", "output", "cached"),
    [
        (TURBOMIND, {}, 60, 128),
        (TURBOMIND, {"cache_generation": "none"}, 60, 64),
        # Without the last token, which was never computed.
        (TURBOMIND, ALL, 60, 179),
        (CLASSIC, {}, 60, 128),
        # The block that fills up while the next one is there already is not indexed ...
        (PYTORCH, {}, 60, 64),
        (PYTORCH, {}, 72, 64),
        # ... until a new one is taken.
        (PYTORCH, {}, 73, 192),
    ],
)
def test_output_is_kept(name: str, options: dict[str, str], output: int, cached: int) -> None:
    cache = cache_of(name, **options)
    whole = text(120 + output)
    turn(cache, whole[:120], whole[120:])
    assert found(cache, whole) == cached


def test_what_continues_a_prompt_within_a_block() -> None:
    whole = text(30)
    for options, cached in (({}, 8), ({"cache_prompt": "all"}, 10), (ALL, 12)):
        cache = cache_of(TURBOMIND, size=4, **options)
        turn(cache, whole[:11], whole[11:13])
        # Blocks: two full ones; the prompt's up to the token before its last; the one that the answer has filled.
        assert found(cache, [*whole[:10], -2]) == min(cached, 10)
        assert found(cache, whole) == {8: 12, 10: 12, 12: 12}[cached]
        assert used(cache) == {8: 3, 10: 4, 12: 4}[cached]


def test_the_longest_block_filled_in_part_is_copied() -> None:
    cache = cache_of(TURBOMIND, size=8, real=True, **ALL)
    whole = text(40)
    for prompt in (whole[:18], whole[:20], whole[:22]):
        turn(cache, prompt, [-1])
    hit = cache.lookup(array([*whole[:21], -3]))
    assert hit.total == 20
    allocation = cache.admit(hit, 5)
    assert allocation is not None
    assert allocation.reused == 20
    [copy] = [move for move in cache.take_transfers() if isinstance(move, Copy)]
    assert len(copy.source) == 8
    assert list(copy.target) == list(allocation.runs.slice(16, 20))
    assert {*copy.source}.isdisjoint(allocation.runs)


def test_a_prompt_is_not_copied_from_a_block_that_it_does_not_go_beyond() -> None:
    cache = cache_of(TURBOMIND, size=8, **ALL)
    turn(cache, text(13), [-1])
    # Kept are 13 tokens and, of the prompt, 12: the last token of this prompt is the twelfth.
    assert cache.lookup(array(text(12))).total == 8
    assert cache.lookup(array(text(13))).total == 12


def test_a_prompt_is_kept_in_part_only_in_memory_that_nobody_uses() -> None:
    for blocks, cached in ((3, 8), (4, 10)):
        cache = cache_of(TURBOMIND, blocks, size=4, cache_prompt="all")
        turn(cache, text(11), [-1])
        assert turn(cache, text(11), [-1]) == cached


def test_a_block_to_copy_does_not_keep_a_request_out() -> None:
    cache = cache_of(TURBOMIND, 3, size=4, **ALL)
    turn(cache, text(6), [-1])
    allocation = cache.admit(cache.lookup(array(text(11))), 1)
    assert allocation is not None
    assert allocation.reused == 4
    cache.check_integrity()


def test_of_a_prompt_whose_last_block_alone_is_missing_no_part_is_kept() -> None:
    cache = cache_of(TURBOMIND, size=4, cache_prompt="all")
    turn(cache, text(8), [-1])
    turn(cache, text(11), [-1])
    assert turn(cache, text(11), [-1]) == 8


# -- when ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TURBOMIND, CLASSIC, PYTORCH])
def test_prompts_are_findable_once_computed(name: str) -> None:
    cache = cache_of(name, size=4, real=True)
    prompt = text(17)
    allocation = cache.admit(cache.lookup(array(prompt)), 10)
    assert allocation is not None
    for done, cached in ((6, 4), (17, 16)):
        assert cache.extend(allocation, done)
        assert found(cache, prompt) < cached
        cache.commit(allocation, array(prompt[:done]))
        assert found(cache, prompt) == cached
    cache.release(allocation)
    assert found(cache, prompt) == 16


@pytest.mark.parametrize(("name", "while_running", "ended"), [(TURBOMIND, 4, 12), (CLASSIC, 4, 12), (PYTORCH, 4, 4)])
def test_output_is_findable_late(name: str, while_running: int, ended: int) -> None:
    cache = cache_of(name, size=4, real=True)
    whole = text(14)
    allocation = cache.admit(cache.lookup(array(whole[:6])), 8)
    assert allocation is not None
    for done in range(6, 15):
        assert cache.extend(allocation, done)
        cache.commit(allocation, array(whole[:done]))
    assert found(cache, whole) == while_running
    cache.release(allocation)
    assert found(cache, whole) == ended


def test_a_prompt_that_was_not_computed_to_its_end_is_kept_in_whole_blocks() -> None:
    cache = cache_of(TURBOMIND, size=4, real=True, **ALL)
    allocation = cache.admit(cache.lookup(array(text(11))), 1)
    assert allocation is not None
    cache.commit(allocation, array(text(6)))
    cache.release(allocation)
    assert found(cache, text(11)) == 4
    assert used(cache) == 1


def test_tokens_belong_to_the_caller() -> None:
    cache = cache_of(TURBOMIND, size=4, **ALL)
    tokens = array(text(11))
    serve(cache, tokens, array([*text(11), -1]))
    tokens[:] = 7
    assert found(cache, text(11)) == 11


@pytest.mark.parametrize("name", [TURBOMIND, CLASSIC, PYTORCH])
def test_copies_made_at_the_same_time_become_one(name: str) -> None:
    cache = cache_of(name, size=4, real=True)
    hit = cache.lookup(array(text(13)))
    first, second = cache.admit(hit, 1), cache.admit(hit, 1)
    assert first is not None
    assert second is not None
    for allocation in (first, second):
        cache.commit(allocation, array(text(13)))
        cache.check_integrity()
    assert list(first.runs.slice(0, 12)) == list(second.runs.slice(0, 12))
    for allocation in (first, second):
        cache.release(allocation)
        cache.check_integrity()
    assert found(cache, text(13)) == 12


def test_salts_are_kept_apart() -> None:
    cache = cache_of(TURBOMIND, size=4, **ALL)
    turn(cache, text(11), [-1], "a")
    assert found(cache, text(11), "b") == 0
    assert turn(cache, text(11), [-1], "b") == 0
    assert found(cache, text(11), "a") == 11


# -- what goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TURBOMIND, CLASSIC, PYTORCH])
def test_tails_go_first_and_only_as_much_as_is_missing(name: str) -> None:
    cache = cache_of(name, 8, size=4)
    turn(cache, text(15), [-1])
    turn(cache, text(10, 1), [-1])
    # What is there now, in blocks: 3 and 2, with the useless ones 4 and 3, and 1 and 2 because 7 were taken at once.
    turn(cache, text(7 if name == PYTORCH else 18, 2), [-1])
    # The third took 5, or with those ahead 6.
    assert [found(cache, text(15)), found(cache, text(10, 1))] == [{TURBOMIND: 4, CLASSIC: 0, PYTORCH: 0}[name], 8]


def test_useless_blocks_are_kept_or_not() -> None:
    survivors = {}
    for name in (TURBOMIND, CLASSIC):
        cache = cache_of(name, 16)
        for seed in range(12):
            turn(cache, text(72, seed), [-1])
        survivors[name] = sum(turn(cache, text(72, seed), [-1]) > 0 for seed in reversed(range(12)))
    assert survivors == {TURBOMIND: 12, CLASSIC: 6}


@pytest.mark.parametrize(("name", "blocks"), [(TURBOMIND, 2), (CLASSIC, 5), (PYTORCH, 2)])
def test_what_is_computed_again_stays_twice_or_not(name: str, blocks: int) -> None:
    cache = cache_of(name)
    for _ in range(2):
        turn(cache, text(128), [-1])
    assert used(cache) == blocks


def test_the_index_follows_the_newer_copy() -> None:
    cache = cache_of(CLASSIC, 6, size=4)
    for _ in range(2):
        turn(cache, text(8), [-1])
    assert used(cache) == 5
    # The old copies, of the block after the prompt and of the prompt's last one, go before anything that is found.
    turn(cache, text(9, 1), [-1])
    assert found(cache, text(8)) == 8
    turn(cache, text(1, 2), [-1])
    turn(cache, text(1, 3), [-1])
    assert found(cache, text(8)) == 4


def test_useless_blocks_of_a_request_go_before_the_others() -> None:
    cache = cache_of(CLASSIC, 3, size=4, real=True)
    allocation = cache.admit(cache.lookup(array(text(12))), 0)
    assert allocation is not None
    cache.commit(allocation, array(text(4)))
    cache.release(allocation)
    for seed in (1, 2):
        turn(cache, text(3, seed), [-1])
        assert found(cache, text(12)) == 4


@pytest.mark.parametrize(("real", "kept"), [(True, 4), (False, 0)])
def test_the_decode_launched_too_many_takes_a_block(real: bool, kept: int) -> None:
    cache = cache_of(TURBOMIND, 4, size=4, real=real)
    turn(cache, text(4, 1), [-1])
    turn(cache, text(12), [-1])
    assert found(cache, text(4, 1)) == kept


def test_blocks_taken_ahead_evict() -> None:
    for n, kept in ((16, 8), (17, 4)):
        cache = cache_of(PYTORCH, 4, size=16)
        turn(cache, text(33, 1)[:32], [-1])
        # The third prompt of 16 tokens takes two blocks, of 17 three.
        turn(cache, text(n), [-1])
        assert found(cache, text(33, 1)[:32]) == kept * 4


def test_no_room_ahead_is_no_reason_to_stop() -> None:
    cache = cache_of(PYTORCH, 11, size=4, real=True)
    first, second = (cache.admit(cache.lookup(array(text(4, seed))), 20) for seed in (1, 2))
    assert first is not None
    assert second is not None
    assert cache.extend(first, 21)
    assert used(cache) == 11
    assert not cache.extend(second, 21)


@pytest.mark.parametrize("name", [TURBOMIND, CLASSIC, PYTORCH])
def test_what_is_in_use_is_not_evicted(name: str) -> None:
    cache = cache_of(name, 8, size=4, real=True)
    turn(cache, text(12), [-1])
    allocation = cache.admit(cache.lookup(array(text(13))), 1)
    assert allocation is not None
    cache.clear("device")
    assert cache.admit(cache.lookup(array(text(32, 1))), 0) is None
    cache.check_integrity()
    assert found(cache, text(12)) == 12
    cache.release(allocation)
    cache.clear("device")
    assert used(cache) == 0


# -- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TURBOMIND, CLASSIC, PYTORCH])
def test_symbols_of_several_tokens(name: str) -> None:
    cache = make_policy(name, {}, Sizes(100, unit=64))
    assert (cache.page_size, cache.longest, cache.chunk_tokens) == (1, 100, 128)
    turn(cache, text(10), [-1])
    assert turn(cache, text(10), [-1]) == 9


@pytest.mark.parametrize("size", [0, 101])
def test_a_block_size_that_cannot_be(size: int) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        make_policy(TURBOMIND, {"block_size": size}, Sizes(100))


def test_damage_is_found() -> None:
    def damaged() -> BlockTree:
        cache = make_policy(TURBOMIND, {"block_size": 4, **ALL}, Sizes(40))
        assert isinstance(cache, BlockTree)
        turn(cache, text(11), [-1])
        cache.admit(cache.lookup(array(text(6))), 1)
        cache.check_integrity()
        return cache

    for harm in (
        lambda cache: setattr(cache, "_idle", cache._idle + 4),
        lambda cache: setattr(next(iter(cache._nodes())), "locks", 2),
        lambda cache: cache._victims.pop(0.0),
        lambda cache: cache._pool.allocate(4),
        lambda cache: setattr(next(iter(cache._allocations.values())), "committed", 0),
    ):
        cache = damaged()
        harm(cache)
        with pytest.raises(CacheCorruption):
            cache.check_integrity()


# -- random lives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_random_lives(seed: int) -> None:
    name = (TURBOMIND, TURBOMIND, CLASSIC, PYTORCH)[seed % 4]
    options: dict[str, Any] = {"block_size": (1, 2, 4, 8)[seed // 4 % 4]}
    if name == TURBOMIND:
        options |= random.Random(seed).choice([ALL, {"cache_prompt": "all"}, {"cache_generation": "all"}, {}])
    walk(name, options, 40 + 37 * seed % 200, 0, seed, MET)


def test_the_lives_have_met_everything() -> None:
    assert missing(MET, ["hit device", "evicted device", "cleared device", "shared", "no room", "preempted"]) == []
