"""HiCache: what is copied to host memory and when, what comes back, and what becomes of copies that are lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from longturn.cache import Allocation, Run, Runs
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.cache.policies.sglang_hicache import HiCache, HiCacheOptions
from longturn.cache.policies.sglang_node import PageNames
from longturn.cache.policies.sglang_storage import StorageHiCache
from longturn.errors import CacheCorruption, ConfigError
from longturn.lab.replay.hits import land_all, serve
from tests.cache.bench import array, text
from tests.cache.policies.golden import recordings, replayed
from tests.cache.policies.machine import missing, walk

MET: Counter[str] = Counter()


def cache_of(device: int, host: int, classic: bool = False, **options: Any) -> HiCache:
    kind = StorageHiCache if "storage" in options else HiCache
    return kind(HiCacheOptions(**options), Sizes(device, host), classic=classic)


def turn(cache: HiCache, prompt: list[int], answer: list[int] | None = None) -> dict[str, int]:
    """One request from beginning to end: what was cached in which tier."""
    served = serve(cache, array(prompt), array(prompt + (answer or [7])))
    cache.check_integrity()
    assert served is not None
    return {tier: n for tier, n in served[0].items() if n}


def found(cache: HiCache, tokens: list[int]) -> tuple[int, int]:
    """How many of `tokens` lie on the device and behind these in host memory; nothing is stamped."""
    hit = cache.lookup(array([*tokens, -1]))
    return hit.device, hit.host


def begin(cache: HiCache, prompt: list[int], output: int = 5) -> Allocation:
    allocation = cache.admit(cache.lookup(array(prompt)), output)
    assert allocation is not None
    return allocation


def moves(cache: HiCache, **landing: int) -> list[tuple[str, int]]:
    """Land what is listed, of the named kinds only so many pages; returns kinds and numbers of pages."""
    made = []
    while transfers := cache.take_transfers():
        for transfer in transfers:
            kind, n = type(transfer).__name__, len(transfer.keys)
            cache.landed(transfer, min(n, landing.get(kind, n)))
            made.append((kind, n))
    cache.check_integrity()
    return made


@pytest.mark.parametrize("path", [*recordings("sglang-hicache")[::3], *recordings("sglang-hicache-classic")[::3]])
def test_recorded_runs(path: Path) -> None:
    counted, recorded = replayed(path)
    assert counted == recorded


def test_write_through_copies_at_once_and_demotes() -> None:
    cache = cache_of(102, 300)
    turn(cache, text(60, 1))
    assert cache.state().tiers[1].used == 60
    turn(cache, text(60, 2))
    assert [found(cache, text(60, seed)) for seed in (1, 2)] == [(0, 60), (60, 0)]
    assert turn(cache, text(60, 1) + text(5, 3)) == {"host": 60}
    # The other way round now; the copy in host memory has stayed.
    assert [found(cache, text(60, seed)) for seed in (1, 2)] == [(60, 0), (0, 60)]
    assert cache.state().tiers[1].used == 125


@pytest.mark.parametrize(("n", "cached"), [(9, {}), (10, {"host": 10})])
def test_few_tokens_are_computed_rather_than_loaded(n: int, cached: dict[str, int]) -> None:
    cache = cache_of(102, 300)
    turn(cache, text(n, 1))
    turn(cache, text(95, 2))
    assert found(cache, text(n, 1)) == (0, cached.get("host", 0))
    assert turn(cache, text(n, 1) + text(5, 3)) == cached
    # Computed or loaded, it is on the device now, and was copied once.
    assert found(cache, text(n, 1)) == (n, 0)
    assert cache.state().tiers[1].used == n + 95 + 5


def test_the_selective_policy_copies_what_is_inserted_twice() -> None:
    cache = cache_of(200, 300, write_policy="write_through_selective")
    turn(cache, text(60, 1))
    assert cache.state().tiers[1].used == 0
    turn(cache, text(60, 1) + text(20, 2))
    assert cache.state().tiers[1].used == 60
    turn(cache, text(150, 3))
    # What had no copy is gone.
    assert found(cache, text(60, 1) + text(20, 2)) == (0, 60)


def test_ancestors_without_a_copy_are_copied_first() -> None:
    cache = cache_of(102, 100)
    turn(cache, text(60, 1))
    # No room for a copy of the prompt, until the first answer's token makes the device demote the other one.
    turn(cache, text(42, 2), text(3, 3))
    assert found(cache, text(60, 1)) == (0, 0)
    assert cache.state().tiers[1].used == 44


def test_write_back_copies_what_leaves_the_device() -> None:
    cache = cache_of(102, 300, write_policy="write_back")
    turn(cache, text(60, 1))
    assert cache.state().tiers[1].used == 0
    turn(cache, text(60, 2))
    assert [found(cache, text(60, seed)) for seed in (1, 2)] == [(0, 60), (60, 0)]
    assert cache.state().tiers[1].used == 60


def test_write_back_drops_what_host_memory_cannot_take() -> None:
    cache = cache_of(102, 50, write_policy="write_back")
    turn(cache, text(60, 1))
    turn(cache, text(60, 2))
    assert found(cache, text(60, 1)) == (0, 0)
    assert cache.state().tiers[1].used == 0


def test_write_back_gives_up_copies_of_what_the_device_has_and_the_classic_engine_does_not() -> None:
    for classic, left in ((False, [(40, 0), (0, 40), (0, 40)]), (True, [(0, 40), (0, 0), (0, 40)])):
        cache = cache_of(102, 80, classic, write_policy="write_back")
        for seed in (1, 2, 3):
            turn(cache, text(40, seed))
        # 1 is in host memory, and comes back: 2 goes down.
        assert turn(cache, text(40, 1) + text(5, 9)) == {"host": 40}
        assert cache.state().tiers[1].used == 80
        # 3 needs room down there.
        turn(cache, text(50, 4))
        assert [found(cache, text(40, seed)) for seed in (1, 2, 3)] == left


def test_what_is_computed_again_revives_its_node() -> None:
    cache = cache_of(102, 300)
    turn(cache, text(9, 1))
    turn(cache, text(95, 2))
    one = begin(cache, text(9, 1), output=2)
    assert one.reused == 0
    assert cache.extend(one, 9)
    cache.commit(one, array(text(9, 1)))
    assert found(cache, text(9, 1)) == (9, 0)
    # The copy is still there.
    assert moves(cache) == []
    cache.release(one)
    cache.check_integrity()


def test_host_memory_evicts_the_least_recently_used_leaf() -> None:
    cache = cache_of(102, 130)
    for seed in (1, 2, 3):
        turn(cache, text(60, seed))
    assert [found(cache, text(60, seed)) for seed in (1, 2, 3)] == [(0, 0), (0, 60), (60, 0)]
    assert cache.state().tiers[1].used == 120


def test_moves() -> None:
    cache = cache_of(104, 100, page_size=4)
    for seed in (1, 2):
        one = begin(cache, text(60, seed))
        assert cache.extend(one, 60)
        cache.commit(one, array(text(60, seed)))
        # Two prompts have no room in host memory: the first one, demoted by now, makes way.
        assert moves(cache) == [[("Save", 15)], [("Drop", 15), ("Save", 15)]][seed - 1]
        cache.release(one)
    turn(cache, text(90, 3))
    begin(cache, [*text(60, 2), 9])
    assert moves(cache) == []


def test_a_load_lands_before_others_may_use_it() -> None:
    cache = cache_of(202, 300)
    turn(cache, text(60, 1))
    turn(cache, text(150, 2))
    hit = cache.lookup(array([*text(60, 1), 9]))
    assert (hit.device, hit.host, hit.arriving) == (0, 60, False)
    one = begin(cache, [*text(60, 1), 9])
    assert one.cached == {"device": 0, "host": 60, "disk": 0}
    again = cache.lookup(array([*text(60, 1), 9]))
    assert (again.device, again.host, again.arriving) == (0, 60, True)
    # Who does not wait loads it too, and gives the slots back when both are there.
    two = begin(cache, [*text(60, 1), 8])
    assert two.cached["host"] == 60
    assert [kind for kind, _ in moves(cache)] == ["Load", "Load"]
    assert one.runs.slice(0, 60).runs == two.runs.slice(0, 60).runs
    assert cache.state().tiers[0].used == 150 + 60 - 150
    for allocation in (one, two):
        cache.release(allocation)
    cache.check_integrity()


def test_a_load_that_fails_in_part_is_a_hit_in_part() -> None:
    cache = cache_of(204, 300, page_size=4)
    turn(cache, text(60, 1))
    turn(cache, text(150, 2))
    one, two = begin(cache, [*text(60, 1), 9]), begin(cache, [*text(60, 1), 8])
    moves(cache, Load=10)
    # The second load found the first ten pages on the device, and the rest had gone.
    assert [allocation.reused for allocation in (one, two)] == [40, 40]
    assert found(cache, text(60, 1)) == (40, 0)
    for allocation in (one, two):
        assert cache.extend(allocation, 61)
        cache.commit(allocation, array([*text(60, 1), 9 if allocation is one else 8]))
        moves(cache)
        cache.release(allocation)
    assert found(cache, text(60, 1)) == (60, 0)
    cache.check_integrity()


def test_a_request_that_is_gone_when_its_load_lands() -> None:
    for landed in (60, 20):
        cache = cache_of(202, 300)
        turn(cache, text(60, 1))
        turn(cache, text(150, 2))
        cache.release(begin(cache, [*text(60, 1), 9]))
        moves(cache, Load=landed)
        assert found(cache, text(60, 1)) == (0, 60 if landed == 60 else 0)


def test_a_copy_that_was_not_made_is_a_miss() -> None:
    cache = cache_of(102, 300)
    one = begin(cache, text(60, 1))
    assert cache.extend(one, 60)
    cache.commit(one, array(text(60, 1)))
    assert moves(cache, Save=30) == [("Save", 60), ("Drop", 60)]
    assert cache.state().tiers[1].used == 0
    cache.release(one)
    moves(cache)
    turn(cache, text(90, 2))
    assert found(cache, text(60, 1)) == (0, 0)


def test_a_copy_that_write_back_could_not_make_takes_what_hangs_below_it_along() -> None:
    cache = cache_of(202, 600, write_policy="write_back")
    turn(cache, text(60, 1))
    turn(cache, text(60, 1) + text(60, 2))
    one = begin(cache, text(150, 3), output=1)
    assert cache.extend(one, 150)
    assert found(cache, text(60, 1) + text(60, 2)) == (0, 120)
    two = begin(cache, text(40, 1), output=1)
    # Nobody has told yet that the copies were not made.
    assert two.cached["host"] == 39
    kinds = [kind for kind, _ in moves(cache, Save=0, Load=0)]
    assert kinds[:3] == ["Save", "Save", "Load"]
    assert two.reused == 0
    assert found(cache, text(60, 1)) == (0, 0)
    assert cache.state().tiers[1].used == 0
    for allocation in (one, two):
        cache.release(allocation)
    cache.check_integrity()


def test_clearing() -> None:
    cache = cache_of(202, 300)
    turn(cache, text(60, 1))
    turn(cache, text(60, 2))
    one = begin(cache, text(60, 1))
    assert cache.clear("host") == 60 + 1
    assert cache.state().tiers[1].used == 59
    assert cache.clear("device") == 61
    cache.release(one)
    # What has a copy is demoted by clearing the device.
    assert cache.clear("device") == 59
    assert found(cache, text(59, 1)) == (0, 59)
    assert cache.clear("host") == 59
    assert [tier.used for tier in cache.state().tiers] == [0, 0]
    land_all(cache)
    cache.check_integrity()


def test_names_of_pages() -> None:
    names = PageNames(Runs([Run(8, 16), Run(40, 44)]), 4)
    assert len(names) == 3
    assert list(names) == [n.to_bytes(16, "big") for n in (8, 12, 40)]
    assert [names[0], names[2], names[-1]] == [n.to_bytes(16, "big") for n in (8, 40, 40)]
    assert list(names[1:]) == list(names)[1:]
    assert list(names[3:]) == []
    with pytest.raises(IndexError):
        names[3]


def fetched(cache: HiCache, prompt: list[int]) -> int:
    """How many tokens a request that arrives would fetch."""
    fetch = cache.prefetch(cache.lookup(array(prompt)))
    if fetch is None:
        return 0
    assert cache.lookup(array(prompt)).arriving
    cache.landed(fetch, len(fetch.keys))
    cache.check_integrity()
    assert not cache.lookup(array(prompt)).arriving
    return len(fetch.keys) * cache.page_size


def stored(host: int = 130, device: int = 102, **options: Any) -> HiCache:
    """A cache whose storage has four prompts of sixty tokens: the last one is on the device as well, and as many as
    have room in host memory."""
    cache = cache_of(device, host, **{"storage": "unlimited", "prefetch_threshold": 20} | options)
    for seed in (1, 2, 3, 4):
        turn(cache, text(60, seed))
    return cache


def empty() -> HiCache:
    """The same, and nothing is left above the storage."""
    cache = stored(200)
    cache.clear("device")
    cache.clear("host")
    land_all(cache)
    return cache


def test_what_was_copied_once_is_fetched() -> None:
    assert turn(stored(), [*text(60, 1), 9]) == {"disk": 60}
    assert turn(stored(), text(60, 1)) == {"disk": 59}
    # Fetched and used, it counts for host memory from then on.
    cache = stored(host=200, device=82)
    turn(cache, [*text(60, 1), 9])
    turn(cache, text(70, 5))
    assert turn(cache, [*text(60, 1), 8]) == {"host": 60}


@pytest.mark.parametrize(("shared", "n"), [(19, 0), (20, 20), (60, 60)])
def test_few_tokens_are_not_fetched(shared: int, n: int) -> None:
    assert fetched(stored(), text(60, 1)[:shared] + text(30, 9)) == n
    assert fetched(stored(page_size=4), text(60, 1)[:shared] + text(30, 9)) == n // 4 * 4


def test_a_fetch_evicts_as_much_as_it_brings_or_brings_less() -> None:
    cache = stored(host=70)
    # The last prompt is on the device and keeps its copy: ten tokens of room are too few.
    assert cache.state().tiers[1].used == 60
    assert fetched(cache, [*text(60, 1), 9]) == 0
    assert fetched(stored(host=90), [*text(60, 1), 9]) == 30


def test_a_fetch_continues_only_what_has_a_copy() -> None:
    cache = cache_of(402, 500, write_policy="write_through_selective", storage="unlimited", prefetch_threshold=20)
    turn(cache, text(90, 1))
    turn(cache, [*text(90, 1), 5])
    cache.clear("device")
    cache.clear("host")
    turn(cache, text(60, 1))
    assert fetched(cache, [*text(90, 1), 9]) == 0
    turn(cache, [*text(60, 1), 5])
    assert fetched(cache, [*text(90, 1), 9]) == 30
    # Nothing holds it any more.
    cache.clear("device")
    cache.clear("host")
    assert cache.state().tiers[1].used == 0


def test_the_classic_engine_looks_behind_the_deepest_copy_wherever_the_match_ends() -> None:
    for classic in (False, True):
        cache = cache_of(
            402, 500, classic, write_policy="write_through_selective", storage="unlimited", prefetch_threshold=20
        )
        known, between, behind = text(30, 1), text(10, 2), text(30, 3)
        turn(cache, known + behind)
        turn(cache, [*known, *behind, 5])
        cache.clear("device")
        cache.clear("host")
        for end in ([], [5], between):
            turn(cache, known + end)
        # The match ends at what has no copy.
        assert found(cache, known + between) == (40, 0)
        fetch = cache.prefetch(cache.lookup(array([*known, *between, *behind, 9])))
        assert (fetch is not None) == classic
        if fetch is not None:
            # What it brings continues that copy, and is of no use to the request.
            cache.landed(fetch, len(fetch.keys))
            cache.check_integrity()
            assert found(cache, known + behind) == (30, 0)
            assert cache.lookup(array([*known, *behind, 9])).disk == 30


def test_a_fetch_that_is_cut_short_brings_what_came() -> None:
    cache = stored()
    fetch = cache.prefetch(cache.lookup(array([*text(60, 1), 9])))
    assert fetch is not None
    cache.landed(fetch, 25)
    cache.check_integrity()
    assert found(cache, text(60, 1)) == (0, 0)
    assert cache.lookup(array([*text(60, 1), 9])).disk == 25


def test_two_fetches_of_the_same_meet() -> None:
    cache = empty()
    fetches = [cache.prefetch(cache.lookup(array([*text(n, 1), 9]))) for n in (60, 40, 59)]
    # Half of host memory may be taken, not more.
    assert fetches.pop() is None
    for fetch in fetches:
        assert fetch is not None
        cache.landed(fetch, len(fetch.keys))
        cache.check_integrity()
    assert cache.lookup(array([*text(60, 1), 9])).disk == 60
    assert cache.state().tiers[1].used == 60


def test_an_anchor_may_go_before_its_fetch_ends() -> None:
    cache = empty()
    assert fetched(cache, [*text(30, 1), 9]) == 30
    fetch = cache.prefetch(cache.lookup(array([*text(60, 1), 9])))
    assert fetch is not None
    cache._drop(cache._trees[""].match(array(text(30, 1)))[0])
    cache.landed(fetch, 30)
    land_all(cache)
    cache.check_integrity()
    assert cache.lookup(array([*text(60, 1), 9])).total == 0


def test_options() -> None:
    with pytest.raises(ConfigError, match="replays only"):
        make_policy("sglang-hicache", {"storage": "unlimited"}, Sizes(1000, 1000, real=True))
    assert isinstance(make_policy("sglang-hicache-classic", {"storage": "unlimited"}, Sizes(1000)), StorageHiCache)
    cache = make_policy("sglang-hicache", {"page_size": 16}, Sizes(100, 129, unit=64))
    assert [tier.capacity for tier in cache.state().tiers] == [100, 129]
    assert [tier.name for tier in make_policy("sglang-hicache", {}, Sizes(100)).state().tiers] == ["device"]


@pytest.mark.parametrize("damage", ["below", "host", "duplicate", "load", "held"])
def test_damage_is_found(damage: str) -> None:
    cache = cache_of(102, 300, write_policy="write_back")
    turn(cache, text(60, 1))
    node = cache._trees[""].match(array(text(60, 1)))[0]
    match damage:
        case "below":
            node.below += 1
        case "host":
            cache._host.allocate(5)
        case "duplicate":
            cache._duplicates[type(node)(None, 0, node.tokens, node.runs, [], node.usage)] = None
        case "load":
            cache._loads[99] = (0, 1)
        case "held":
            node.held = 1
    with pytest.raises(CacheCorruption):
        cache.check_integrity()


@pytest.mark.parametrize("seed", range(90))
def test_random_lives(seed: int) -> None:
    options = {
        "page_size": (1, 2, 4)[seed % 3],
        "eviction": ("lru", "lfu", "slru", "priority")[seed % 4],
        "write_policy": ("write_through", "write_back", "write_through_selective", "write_back")[seed // 2 % 4],
        "chunked_prefill_size": (0, 0, 8)[seed % 3],
    }
    name = "sglang-hicache-classic" if seed % 3 == 1 else "sglang-hicache"
    walk(name, options, 70 + 37 * seed % 150, (60, 200, 400)[seed // 4 % 3], seed, MET)


def test_the_lives_have_met_everything() -> None:
    wanted = [f"{kind} {tier}" for kind in ("hit", "evicted", "cleared") for tier in ("device", "host")]
    assert missing(MET, [*wanted, "stored host", "loaded host", "failed host", "no room", "shared"]) == []
