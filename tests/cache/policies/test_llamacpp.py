"""llama.cpp's server: which slot a request gets, and what the host cache does with the prompts that make way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longturn.cache import Drop, Load, Runs, Save, Transfer
from longturn.cache.events import EventLog
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.llamacpp import LlamaCppCache, LlamaCppOptions
from longturn.cache.policies.llamacpp_host import HostPrompts
from longturn.cache.policies.registry import make_policy
from longturn.errors import ConfigError
from longturn.lab.replay.hits import land_all
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk

MET: Counter[str] = Counter()


def cache_of(device: int = 400, host: int = 0, **options: Any) -> LlamaCppCache:
    return LlamaCppCache(LlamaCppOptions(**options), Sizes(device, host))


def turn(cache: LlamaCppCache, tokens: list[int], output: int = 1, salt: str = "") -> tuple[int, dict[str, int]]:
    """One request from beginning to end: its slot, and what was cached in which tier."""
    prompt, whole = array(tokens), array(tokens + text(output, 77))
    hit = cache.lookup(prompt, salt)
    allocation = cache.admit(hit, output)
    assert allocation is not None
    assert allocation.reused == hit.total
    land_all(cache)
    for length in range(len(tokens), len(tokens) + output):
        assert cache.extend(allocation, length)
        cache.commit(allocation, whole[:length])
    slot, cached = allocation.where.id, {tier: n for tier, n in allocation.cached.items() if n}
    cache.release(allocation)
    land_all(cache)
    cache.check_integrity()
    return slot, cached


@pytest.mark.parametrize("path", recordings("llamacpp"))
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


def test_unused_slots_are_taken_from_the_last_one_down() -> None:
    cache = cache_of()
    assert [turn(cache, text(30, seed))[0] for seed in (1, 2, 3, 4)] == [3, 2, 1, 0]
    # All used: the one that was used least recently.
    assert turn(cache, text(30, 5))[0] == 3
    assert turn(cache, text(30, 2))[0] == 2
    assert [turn(cache, text(30, seed))[0] for seed in (6, 7)] == [1, 0]


def test_more_than_a_tenth_of_the_request_in_common_chooses_the_slot() -> None:
    cache = cache_of()
    assert turn(cache, text(10, 1) + text(90, 2)) == (3, {})
    # Exactly a tenth is not enough.
    assert turn(cache, text(10, 1) + text(90, 3)) == (2, {})
    # Above it, the first of those that share most.
    assert turn(cache, text(10, 1) + text(89, 4)) == (2, {"device": 10})


def test_a_shared_beginning_sends_all_to_one_slot() -> None:
    cache = cache_of()
    assert [turn(cache, text(50, 1) + text(50, seed))[0] for seed in range(2, 8)] == [3] * 6


def test_the_last_token_of_a_known_prompt_is_computed_and_the_last_of_an_answer_is_not_kept() -> None:
    cache = cache_of()
    turn(cache, text(40), output=5)
    assert turn(cache, text(40), output=1) == (3, {"device": 39})
    turn(cache, text(60, 1), output=5)
    assert turn(cache, text(60, 1) + text(5, 77) + [1])[1] == {"device": 64}


def test_only_a_slot_that_would_lose_most_is_saved() -> None:
    cache = cache_of(host=1000, slots=1)
    turn(cache, text(50, 1) + text(49, 2))
    # 50 of 99 tokens stay: the rest is overwritten unsaved.
    assert turn(cache, text(50, 1) + text(30, 3)) == (0, {"device": 50})
    assert cache.state().tiers[1].used == 0
    turn(cache, text(50, 1) + text(51, 2))
    # 50 of 101 stay: the slot is saved first.
    assert turn(cache, text(50, 1) + text(30, 3)) == (0, {"device": 50})
    assert cache.state().tiers[1].used == 101


def test_a_host_prompt_moves_into_the_slot() -> None:
    cache = cache_of(host=1000, slots=1)
    turn(cache, text(50, 1))
    turn(cache, text(50, 2))
    assert cache.state().tiers[1].used == 50
    assert turn(cache, [*text(50, 1), 7]) == (0, {"host": 50})
    # The other one was saved in its place.
    assert cache.state().tiers[1].used == 50
    assert turn(cache, [*text(50, 2), 7]) == (0, {"host": 50})


def test_a_host_prompt_must_keep_a_quarter_of_itself() -> None:
    for n, cached in ((24, {}), (25, {"host": 25})):
        cache = cache_of(host=1000, slots=1)
        turn(cache, text(100, 1))
        turn(cache, text(50, 2))
        assert turn(cache, text(n, 1) + text(50, 3))[1] == cached


def test_host_prompts_go_in_the_order_in_which_they_were_saved() -> None:
    for again, cached in ((1, {}), (3, {"host": 50})):
        cache = cache_of(slots=1, cache_ram_tokens=110)
        for seed in (1, 2, 3, 4):
            turn(cache, text(50, seed))
        # Saving 3 has dropped 1, and saving 4 drops 2 before anything is loaded.
        assert cache.state().tiers[1].used == 100
        assert turn(cache, [*text(50, again), 7])[1] == cached


def test_a_prompt_within_another_is_not_kept_twice() -> None:
    moves: list[Transfer] = []
    host = HostPrompts(100, lambda n: n, True, moves.append, EventLog(lambda: 0.0))
    assert host.save(array(text(40)), "", Runs(), 1)
    assert not host.save(array(text(30)), "", Runs(), 1)
    assert host.save(array(text(30)), "a", Runs(), 1)
    assert not host.save(array(text(101)), "", Runs(), 1)
    assert host.save(array(text(60)), "", Runs(), 1)
    assert [len(entry.tokens) for entry in host.entries] == [30, 60]
    assert [(type(move), len(move.keys)) for move in moves] == [(Save, 40), (Save, 30), (Drop, 40), (Save, 60)]
    assert moves[0].keys[39] == moves[2].keys[-1] != moves[3].keys[39]
    assert list(moves[2].keys[38:]) == list(moves[0].keys)[38:]


def test_no_limit_keeps_as_many_tokens_as_the_context_has() -> None:
    kept = {}
    for ram in (-1, 400, 0):
        cache = cache_of(100, slots=1, cache_ram_tokens=ram)
        for seed in range(1, 8):
            turn(cache, text(40, seed))
        kept[ram] = sum(tier.used for tier in cache.state().tiers if tier.name == "host")
    assert kept == {-1: 80, 400: 240, 0: 0}


def test_headers_of_host_prompts_count() -> None:
    # 40,000 tokens of 128 KiB and 12 bytes each take as much as 40,004 without the latter.
    for ram, used in ((40_003, 0), (40_004, 40_000)):
        cache = cache_of(50_000, slots=1, cache_ram_tokens=ram)
        turn(cache, text(40_000, 1))
        turn(cache, text(10, 90))
        assert cache.state().tiers[1].used == used


@pytest.mark.parametrize("unified", [True, False])
def test_idle_slots_are_put_away(unified: bool) -> None:
    cache = cache_of(host=1000, unified=unified)
    turn(cache, text(50, 1))
    turn(cache, text(50, 2))
    device, host = cache.state().tiers
    # Unified, the first was emptied as well.
    assert (device.used, host.used) == ((50, 50) if unified else (100, 50))


def test_unified_slots_make_way_from_the_first_one_on() -> None:
    cache = cache_of(200, cache_ram_tokens=0)
    for seed in (1, 2, 3, 4):
        turn(cache, text(50, seed))
    # Slot 3 is used again and grows; slots 0 and 1 must go, though 3 was used before them.
    assert turn(cache, text(50, 1) + text(60, 5)) == (3, {"device": 50})
    assert cache.state().tiers[0].used == 110 + 50
    assert turn(cache, text(50, 2))[1] == {"device": 49}


def test_slots_of_their_own_have_a_part_of_the_context() -> None:
    assert cache_of(402, unified=False).longest == 100
    assert cache_of(402).longest == 402


def test_a_host_prompt_that_does_not_fit_leaves_the_slot_empty() -> None:
    cache = cache_of(100, slots=2, cache_ram_tokens=1000)
    turn(cache, text(80, 1))
    turn(cache, text(50, 2))
    assert cache.state().tiers[1].used == 80
    busy = cache.admit(cache.lookup(array([*text(50, 2), 5])), 1)
    assert busy is not None
    assert cache.extend(busy, 51)
    hit = cache.lookup(array(text(30, 1)))
    assert hit.total == 0
    allocation = cache.admit(hit, 1)
    assert allocation is not None
    assert allocation.reused == 0
    assert cache.state().tiers[1].used == 80
    cache.check_integrity()


def test_as_many_requests_as_slots() -> None:
    cache = cache_of(slots=2, unified=False)
    first, second = (cache.admit(cache.lookup(array(text(20, seed))), 5) for seed in (1, 2))
    assert first is not None
    assert second is not None
    hit = cache.lookup(array(text(20, 1)))
    assert hit.total == 0
    assert cache.admit(hit, 5) is None
    cache.release(first)
    assert cache.admit(hit, 5) is not None


def test_prompts_that_run_keep_their_cells() -> None:
    cache = cache_of(100)
    assert cache.admit(cache.lookup(array(text(60, 1))), 5) is not None
    assert cache.admit(cache.lookup(array(text(41, 2))), 5) is None
    assert cache.admit(cache.lookup(array(text(40, 2))), 5) is not None


def test_an_answer_that_finds_no_cell_is_told_so() -> None:
    cache = cache_of(100)
    running = [cache.admit(cache.lookup(array(text(50, seed))), 5) for seed in (1, 2)]
    for allocation in running:
        assert allocation is not None
        assert cache.extend(allocation, 50)
    assert running[0] is not None
    assert running[1] is not None
    assert not cache.extend(running[0], 51)
    cache.release(running[1])
    # The idle slot makes way.
    assert cache.extend(running[0], 51)
    cache.check_integrity()


def test_what_never_landed_is_not_in_the_slot() -> None:
    cache = cache_of(host=1000, slots=1)
    turn(cache, text(50, 1))
    turn(cache, text(50, 2))
    allocation = cache.admit(cache.lookup(array([*text(50, 1), 7])), 1)
    assert allocation is not None
    loads = [transfer for transfer in cache.take_transfers() if isinstance(transfer, Load)]
    cache.release(allocation)
    cache.check_integrity()
    assert cache.lookup(array([*text(50, 1), 7])).total == 0
    cache.landed(loads[0], 20)
    assert cache.lookup(array([*text(50, 1), 7])).total == 0


def test_a_load_that_fails_empties_the_slot() -> None:
    cache = cache_of(host=1000, slots=1)
    turn(cache, text(50, 1))
    turn(cache, text(50, 2))
    allocation = cache.admit(cache.lookup(array([*text(50, 1), 7])), 1)
    assert allocation is not None
    assert allocation.cached == {"device": 0, "host": 50}
    for transfer in cache.take_transfers():
        cache.landed(transfer, 20 if isinstance(transfer, Load) else len(transfer.keys))
    assert allocation.reused == 0
    cache.check_integrity()
    cache.release(allocation)
    assert cache.lookup(array(text(50, 1))).total == 0


def test_salts_are_kept_apart() -> None:
    cache = cache_of(host=1000)
    turn(cache, text(50, 1), salt="a")
    assert turn(cache, text(50, 1), salt="b")[1] == {}
    assert turn(cache, text(50, 1), salt="a")[1] == {"host": 49}
    assert turn(cache, text(50, 1), salt="b")[1] == {"host": 49}


def test_options() -> None:
    assert make_policy("llamacpp", {"slots": "2", "cache_ram_tokens": "none"}, Sizes(100)).state().tiers[1:] == []
    sizes = Sizes(100, 64, unit=64)
    cache = make_policy("llamacpp", {"cache_ram_tokens": 6400, "unified": "false"}, sizes)
    assert (cache.longest, cache.chunk_tokens, cache.state().tiers[1].capacity) == (25, 32, 100)
    # Where pages really move, there is no more host memory than there is.
    assert make_policy("llamacpp", {"cache_ram_tokens": 99}, Sizes(100, 50, real=True)).state().tiers[1].capacity == 50
    assert make_policy("llamacpp", {"cache_ram_tokens": -1}, Sizes(100, real=True)).state().tiers[1:] == []
    with pytest.raises(ConfigError, match="slots"):
        cache_of(3)


@pytest.mark.parametrize("seed", range(60))
def test_random_lives(seed: int) -> None:
    options = {
        "slots": (1, 2, 4)[seed % 3],
        "unified": seed % 2 == 0,
        "cache_ram_tokens": (None, None, -1, 0, 150)[seed % 5],
    }
    walk("llamacpp", options, 40 + 37 * seed % 200, (0, 60, 200, 400)[seed % 4], seed, MET)


def test_the_lives_have_met_everything() -> None:
    wanted = [f"{kind} {tier}" for kind in ("hit", "evicted", "cleared") for tier in ("device", "host")]
    assert missing(MET, [*wanted, "stored host", "loaded host", "failed host", "no room", "preempted"]) == []
