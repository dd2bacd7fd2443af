"""Longturn's own policy, part by part. The machine beside this drives the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from longturn.cache import Load, LongturnCache, LongturnOptions, Run, Runs
from longturn.errors import CacheCorruption, ConfigError
from tests.cache.bench import PAGE, Bench, array, text

# -- finding ---------------------------------------------------------------------------------------------------------


def test_nothing_is_found_in_an_empty_cache() -> None:
    bench = Bench(host=4, disk=4)
    for tokens in ([], [1], text(50)):
        hit = bench.cache.lookup(array(tokens))
        assert (hit.total, hit.arriving) == (0, False)


def test_the_last_token_is_always_computed() -> None:
    bench = Bench(host=20)
    bench.turn(text(40))
    assert bench.cache.lookup(array(text(40))).device == 39
    assert bench.cache.lookup(array(text(41))).device == 40
    assert bench.cache.lookup(array(text(1))).total == 0
    bench.clear("device")
    assert bench.cache.lookup(array(text(40))).host == 39


def test_reuse_is_to_the_token() -> None:
    for lower in (0, 20):
        bench = Bench(device=2000, host=10 * lower)
        bench.turn(text(40))
        if lower:
            bench.clear("device")
        for n in range(1, 40):
            tokens = [*text(n), 7777, 7778]
            assert sum(bench.found(tokens).values()) == n
            assert sum(bench.turn(tokens).values()) == n
            if lower:
                bench.clear("device")


def test_a_lookup_changes_nothing() -> None:
    bench = Bench(host=20, disk=20, device=64)
    for seed in range(4):
        bench.turn(text(30, seed))
    before = (bench.cache.state(), len(bench.cache._device._trees), bench.cache._recency._stamp)
    for seed in range(6):
        for salt in ("", "stranger"):
            bench.cache.lookup(array(text(35, seed)), salt)
    assert (bench.cache.state(), len(bench.cache._device._trees), bench.cache._recency._stamp) == before
    assert bench.cache.take_transfers() == []


def test_salts_do_not_meet() -> None:
    bench = Bench(host=40, disk=40)
    bench.turn(text(40), salt="a")
    for salt in ("", "b", "a "):
        assert bench.found(text(40), salt) == {}
    bench.clear("device")
    assert bench.found(text(40), "a") == {"host": 40}
    assert bench.found(text(40), "b") == {}
    bench.clear("host")
    assert bench.found(text(40), "a") == {"disk": 40}
    assert bench.found(text(40), "b") == {}


def test_models_do_not_meet_on_a_disk() -> None:
    bench = Bench(disk=40)
    bench.turn(text(40))
    options = LongturnOptions(100, 0, PAGE, fingerprint="another")
    assert LongturnCache(options, bench.disk).lookup(array(text(40))).total == 0
    same = LongturnOptions(100, 0, PAGE, fingerprint="fake")
    assert LongturnCache(same, bench.disk).lookup(array(text(40))).disk == 39


def test_reuse_in_multiples() -> None:
    bench = Bench(device=200, host=50, disk=50, reuse_multiple=10)
    bench.turn(text(50))
    # The host is matched to the token too, but has whole pages only; the disk is matched by whole pages.
    for cleared, has in (((), range(51)), (("device",), range(49)), (("host",), range(0, 49, PAGE))):
        bench.clear(*cleared)
        for n in range(1, 50):
            wanted = max(m for m in has if m <= n) // 10 * 10
            assert sum(bench.found([*text(n), 7777]).values()) == wanted
    assert bench.turn([*text(37), 7777]) == {"disk": 30}


def test_a_hit_over_three_tiers() -> None:
    bench = Bench(host=5, disk=50)
    bench.turn(text(44))
    bench.clear("device", "host")
    bench.turn(text(20))  # pages 0 to 4 are in the host again
    bench.clear("device")
    bench.turn(text(10))
    assert bench.found(text(44)) == {"device": 10, "host": 10, "disk": 24}
    assert bench.turn(text(44)) == {"device": 10, "host": 10, "disk": 23}


# -- admission, growth, commitment, release --------------------------------------------------------------------------


def test_generated_tokens_are_kept() -> None:
    bench = Bench()
    allocation = bench.admit(text(10), new=5)
    assert allocation is not None
    bench.compute(allocation, text(10))
    for n in range(11, 16):
        bench.compute(allocation, text(15), n)
    assert bench.cache.extend(allocation, 18)
    bench.compute(allocation, text(18))
    assert len(allocation.runs) == 18
    bench.cache.release(allocation)
    assert bench.found(text(18)) == {"device": 18}
    # A conversation that grows lies in one run.
    assert allocation.runs.runs == [Run(allocation.runs.runs[0].start, allocation.runs.runs[0].start + 18)]


def test_chunks_are_found_before_the_prompt_is_done() -> None:
    bench = Bench(host=20)
    first = bench.admit(text(40))
    assert first is not None
    bench.compute(first, text(40), 13)
    second = bench.admit(text(30))
    assert second is not None
    assert second.cached["device"] == 13
    # Both go on and compute the same: the later one moves to the slots of the earlier.
    bench.compute(first, text(40), 40)
    bench.compute(second, text(30), 30)
    assert [*second.runs.slice(0, 30)] == [*first.runs.slice(0, 30)]
    assert bench.used()["device"] == 40
    bench.cache.release(first)
    bench.cache.release(second)
    bench.cache.check_integrity()


def test_slots_that_were_not_committed_are_freed() -> None:
    bench = Bench()
    allocation = bench.admit(text(40), new=20)
    assert allocation is not None
    bench.compute(allocation, text(40), 12)
    assert bench.used()["device"] == 60
    bench.cache.release(allocation)
    assert bench.used()["device"] == 12
    bench.cache.check_integrity()


def test_what_is_locked_stays() -> None:
    bench = Bench(device=100)
    held = bench.admit(text(40))
    assert held is not None
    bench.compute(held, text(40))
    bench.turn(text(40, 1))
    # 60 slots could be had by eviction, 61 could not.
    assert bench.admit(text(61, 2)) is None
    assert bench.found(text(40, 1)) == {"device": 40}
    assert bench.admit(text(60, 2)) is not None
    assert bench.found(text(40)) == {"device": 40}
    assert bench.found(text(40, 1)) == {}
    assert not bench.cache.extend(held, 41)


def test_a_refused_admission_leaves_no_locks() -> None:
    bench = Bench(device=60, host=3)
    bench.turn(text(30))
    other = bench.admit(text(30, 1))
    assert other is not None
    for _ in range(3):
        assert bench.admit([*text(30), *text(20, 5)]) is None
    bench.cache.check_integrity()
    bench.cache.release(other)
    assert bench.turn([*text(30), *text(20, 5)]) == {"device": 30}


def test_a_hit_that_went_stale_is_looked_up_again() -> None:
    bench = Bench(device=100)
    bench.turn(text(40))
    hit = bench.cache.lookup(array(text(50)))
    assert hit.total == 40
    bench.clear("device")
    allocation = bench.cache.admit(hit, 0)
    assert allocation is not None
    assert allocation.reused == 0
    assert len(allocation.runs) == 50
    bench.cache.check_integrity()
    # And one that has become better.
    bench.compute(allocation, text(50))
    hit = bench.cache.lookup(array([*text(50), *text(20, 1)]))
    bench.cache.release(allocation)
    bench.turn([*text(50), *text(10, 1)])
    better = bench.cache.admit(hit, 0)
    assert better is not None
    assert better.cached["device"] == 60
    assert len(better.runs) == 70


def test_an_allocation_of_nothing_new() -> None:
    bench = Bench()
    bench.turn(text(20))
    allocation = bench.admit(text(20))
    assert allocation is not None
    bench.cache.commit(allocation, array(text(5)))  # nothing that is not known
    bench.cache.release(allocation)
    assert bench.used()["device"] == 20


# -- eviction --------------------------------------------------------------------------------------------------------


def test_the_tail_goes_first_and_no_more_than_needed() -> None:
    bench = Bench(device=100)
    bench.turn(text(60))
    bench.turn(text(30, 1))
    bench.turn(text(20, 2))
    # 10 were free, 10 were missing: of the oldest, in whole pages.
    assert bench.found(text(60)) == {"device": 48}
    assert bench.found(text(30, 1)) == {"device": 30}
    assert [(event.tokens, event.depth) for event in bench.events("evicted")] == [(12, 48)]


def test_branches_go_before_their_trunk() -> None:
    bench = Bench(device=100)
    bench.turn([*text(40), *text(20, 1)])
    bench.turn([*text(40), *text(20, 2)])
    bench.turn(text(40, 3))
    assert bench.found([*text(40), *text(20, 1)]) == {"device": 40}
    bench.turn(text(20, 4))
    assert bench.found([*text(40), *text(20, 2)]) == {"device": 40}


@pytest.mark.parametrize(
    ("order", "lost"), [("lru", 1), ("fifo", 0), ("lfu", 2), ("slru", 2), ("priority", 2), ("cost", 2)]
)
def test_every_order_decides_who_goes(order: str, lost: int) -> None:
    """0 came first, 1 was used long ago, 2 was used only once; 0 and 1 have priority."""
    bench = Bench(device=100, eviction=order)
    for seed in (0, 1):
        bench.turn(text(30, seed))
        bench.turn(text(31, seed))
        bench.hint("priority", text(31, seed), level=2)
    bench.turn(text(30, 2))
    bench.turn(text(31, 0))
    if order in ("lfu", "slru", "cost"):
        bench.turn(text(31, 1))
    bench.turn(text(20, 3))
    assert [seed for seed in range(3) if bench.found(text(30, seed)) != {"device": 30}] == [lost]


def test_the_host_evicts_too() -> None:
    bench = Bench(host=10)
    for seed in range(3):
        bench.turn(text(20, seed))
    bench.clear("device")
    assert bench.found(text(20, 0)) == {}
    assert bench.found(text(20, 1)) == {"host": 20}
    assert bench.found(text(20, 2)) == {"host": 20}
    assert bench.drops() == [(5, False)]
    assert bench.host is not None
    assert bench.host.stats().pages == 10


def test_pages_used_on_the_device_stay_in_the_host() -> None:
    """A conversation that is only ever hit on the device must not be the host's oldest."""
    bench = Bench(host=10)
    bench.turn(text(20, 0))
    bench.turn(text(20, 1))
    bench.turn([*text(20, 0), 5555])
    bench.turn(text(20, 2))
    bench.clear("device")
    assert bench.found(text(20, 0)) == {"host": 20}
    assert bench.found(text(20, 1)) == {}


def test_evictions_say_where_a_copy_is_left() -> None:
    for tiers, kept_in in (({}, None), ({"host": 50}, "host"), ({"disk": 50}, "disk")):
        bench = Bench(**tiers)
        bench.turn(text(40))
        bench.events()
        bench.clear("device")
        assert [(event.tier, event.tokens, event.kept_in) for event in bench.events("evicted")] == [
            ("device", 40, kept_in)
        ]


# -- write policies --------------------------------------------------------------------------------------------------


def test_write_through_saves_each_page_once() -> None:
    bench = Bench(host=50, disk=50)
    allocation = bench.admit(text(10), new=10)
    assert allocation is not None
    bench.compute(allocation, text(10))
    assert bench.saves() == [(2, ("host", "disk"))]
    for n in range(11, 21):
        bench.compute(allocation, text(20), n)
    assert bench.saves() == [(2, ("host", "disk"))] + [(1, ("host", "disk"))] * 3
    bench.cache.release(allocation)
    bench.turn(text(20))
    bench.clear("device")
    bench.turn(text(20))
    assert len(bench.saves()) == 4


def test_selective_saves_on_the_second_use() -> None:
    bench = Bench(host=50, disk=50, write_policy="write_through_selective")
    bench.turn(text(20))
    assert bench.saves() == []
    bench.turn([*text(20), *text(8, 1)])
    assert bench.saves() == [(5, ("host", "disk"))]
    bench.turn([*text(20), *text(8, 2)])
    assert len(bench.saves()) == 1
    bench.clear("device")
    assert bench.found([*text(20), *text(8, 1)]) == {"host": 20}


def test_write_back_saves_what_leaves() -> None:
    bench = Bench(device=40, host=5, disk=50, write_policy="write_back")
    bench.turn(text(20))
    bench.turn(text(20, 1))
    assert bench.saves() == []
    bench.turn(text(12, 2))
    # Three pages of the oldest left the device for the host.
    assert bench.saves() == [(3, ("host",))]
    assert bench.found(text(20)) == {"device": 8, "host": 12}
    bench.clear("device")
    # And from there to the disk, as the host is too small.
    assert sum(n for n, to_disk in bench.drops() if to_disk) == 8
    for seed, n in ((0, 20), (1, 20), (2, 12)):
        assert sum(bench.found(text(n, seed)).values()) == n
        assert sum(bench.turn([*text(n, seed), 5555]).values()) == n


def test_write_back_without_a_host_goes_to_the_disk() -> None:
    bench = Bench(device=40, disk=50, write_policy="write_back")
    bench.turn(text(20))
    bench.clear("device")
    assert bench.saves() == [(5, ("disk",))]
    assert bench.turn([*text(20), 5555]) == {"disk": 20}


def test_clean_pages_are_not_written_to_disk_again() -> None:
    bench = Bench(device=40, host=20, disk=50, write_policy="write_back")
    bench.turn(text(20))
    bench.clear("device", "host")
    assert bench.drops() == [(5, True)]
    bench.turn(text(20))
    bench.clear("device", "host")
    assert sum(n for n, to_disk in bench.drops() if to_disk) == 5


# -- pages that fit in part, pages that arrive, pages that do not ------------------------------------------------------


def test_a_page_is_loaded_in_part() -> None:
    bench = Bench(host=50)
    bench.turn(text(40))
    bench.clear("device")
    bench.turn(text(6))
    bench.moved.clear()
    assert bench.turn([*text(15), 7777]) == {"device": 6, "host": 9}
    loads = [move for move in bench.moved if isinstance(move, Load)]
    # The device has two tokens of page 1, and of page 3 the last is not wanted.
    assert [(len(load.keys), load.skip, len(load.runs), load.first) for load in loads] == [(3, 2, 9, 6)]


def test_a_fetch_brings_pages_to_the_host() -> None:
    bench = Bench(host=20, disk=50)
    bench.turn(text(30))
    bench.clear("device", "host")
    assert bench.cache.prefetch(bench.cache.lookup(array(text(5, 9)))) is None
    fetch = bench.fetch(text(30))
    assert fetch is not None
    assert len(fetch.keys) == 7
    hit = bench.cache.lookup(array(text(30)))
    assert (hit.arriving, hit.disk) == (True, 28)
    # Nobody fetches the same again.
    assert bench.fetch(text(30)) is None
    bench.arrive(fetch)
    hit = bench.cache.lookup(array(text(30)))
    # It still counts as the disk's: that is where it was.
    assert (hit.arriving, hit.disk, hit.host) == (False, 28, 0)
    assert bench.turn(text(30)) == {"disk": 28}
    bench.clear("device")
    # Once used it is the host's; the last two tokens are a page's only from now on.
    assert bench.found(text(30)) == {"host": 28}


def test_a_fetch_takes_half_of_the_host_at_most() -> None:
    bench = Bench(host=8, disk=50)
    bench.turn(text(60))
    bench.clear("device", "host")
    fetch = bench.fetch(text(60))
    assert fetch is not None
    assert len(fetch.keys) == 4
    bench.arrive(fetch)
    assert bench.turn(text(60)) == {"disk": 59}


def test_arriving_pages_are_not_evicted() -> None:
    bench = Bench(host=8, disk=50)
    bench.turn(text(16))
    bench.clear("device", "host")
    fetch = bench.fetch(text(16))
    assert fetch is not None
    for seed in range(1, 5):
        bench.turn(text(30, seed))
    bench.clear("host")
    assert bench.used()["host"] == len(fetch.keys) * PAGE
    bench.arrive(fetch)
    bench.clear("device")
    assert bench.turn(text(16)) == {"disk": 15}


def test_a_fetch_that_fails_in_part() -> None:
    bench = Bench(host=20, disk=50)
    bench.turn(text(30))
    bench.clear("device", "host")
    fetch = bench.fetch(text(30))
    assert fetch is not None
    assert bench.disk is not None
    bench.disk.delete(fetch.keys[3:4])
    bench.arrive(fetch)
    assert bench.found(text(30)) == {"disk": 12}
    assert bench.turn(text(30)) == {"disk": 12}
    # Computed anew, and stored anew.
    bench.clear("device", "host")
    assert bench.found(text(30)) == {"disk": 28}


@pytest.mark.parametrize("multiple", [1, 10])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_load_that_fails_in_part(tier: str, multiple: int) -> None:
    bench = Bench(device=200, host=50, disk=50, reuse_multiple=multiple)
    bench.turn(text(60))
    bench.clear("device", *(["host"] if tier == "disk" else []))
    bench.turn(text(20))
    hit = bench.cache.lookup(array(text(60)))
    allocation = bench.cache.admit(hit, 0)
    assert allocation is not None
    store = bench.host if tier == "host" else bench.disk
    assert store is not None
    (load,) = [move for move in bench.cache._lower.transfers if isinstance(move, Load)]
    # The page of tokens 28 to 31.
    store.delete([load.keys[(28 - load.first + load.skip) // PAGE]])
    bench.carry_out()
    assert allocation.reused == 28 // multiple * multiple
    assert [(event.kind, event.tier, event.depth) for event in bench.events("failed")] == [("failed", tier, 28)]
    bench.compute(allocation, text(60))
    bench.cache.release(allocation)
    bench.cache.check_integrity()
    bench.clear("device")
    assert sum(bench.turn([*text(60), 7777]).values()) == 60


# -- hints -----------------------------------------------------------------------------------------------------------


def test_a_pin_holds_while_others_go() -> None:
    bench = Bench(device=100)
    bench.turn(text(30, 0))
    bench.turn(text(30, 1))
    assert bench.hint("pin", text(30, 0), seconds=10) == 30
    for seed in range(2, 6):
        bench.turn(text(30, seed))
    assert bench.found(text(30, 0)) == {"device": 30}
    assert bench.found(text(30, 1)) == {}


def test_a_pin_yields_when_there_is_nothing_else() -> None:
    bench = Bench(device=100)
    bench.turn(text(30))
    bench.hint("pin", text(30), seconds=10)
    bench.turn(text(90, 1))
    assert bench.found(text(30)) == {"device": 8}


def test_a_pin_ends() -> None:
    bench = Bench(device=100)
    bench.turn(text(30, 0))
    bench.turn(text(30, 1))
    bench.hint("pin", text(30, 0), seconds=10)
    bench.now = 11
    bench.turn(text(60, 2))
    assert bench.found(text(30, 0)).get("device", 0) < 30
    assert bench.found(text(30, 1)) == {"device": 30}


def test_a_shorter_pin_does_not_cut_a_longer_one() -> None:
    bench = Bench(device=100)
    bench.turn(text(30, 0))
    bench.turn(text(30, 1))
    for seconds in (100, 10):
        bench.hint("pin", text(30, 0), seconds=seconds)
    bench.now = 11
    bench.turn(text(60, 2))
    assert bench.found(text(30, 0)) == {"device": 30}
    assert bench.found(text(30, 1)).get("device", 0) < 30


def test_the_expected_go_after_the_others_and_before_the_pinned() -> None:
    bench = Bench(device=100)
    for seed, kind in enumerate(("expect", "pin")):
        bench.turn(text(30, seed))
        bench.hint(kind, text(30, seed), seconds=10)
    bench.turn(text(30, 2))
    bench.turn(text(40, 3))
    assert [bench.found(text(30, seed)) for seed in range(3)] == [{"device": 30}, {"device": 30}, {}]
    bench.turn(text(60, 4))
    assert bench.found(text(30, 0)).get("device", 0) < 30
    assert bench.found(text(30, 1)) == {"device": 30}


@pytest.mark.parametrize("kind", ["release", "supersede"])
def test_what_is_dead_goes_first(kind: str) -> None:
    bench = Bench(device=100)
    for seed in range(3):
        bench.turn(text(30, seed))
    assert bench.hint(kind, text(30, 2)) == 30
    bench.turn(text(30, 3))
    assert [bench.found(text(30, seed)).get("device", 0) for seed in range(3)] == [30, 30, 8]


def test_a_range_that_is_dead_leaves_what_came_before_it() -> None:
    bench = Bench(device=100)
    bench.turn(text(60))
    bench.turn(text(30, 1))
    # A tool result in the middle: what follows it is of no use either.
    assert bench.hint("release", text(60), 20, 40) == 40
    bench.turn(text(50, 2))
    assert bench.found(text(60)) == {"device": 20}
    assert bench.found(text(30, 1)) == {"device": 30}


def test_a_branch_beside_a_dead_range_lives_on() -> None:
    bench = Bench(device=100)
    bench.turn([*text(20), *text(20, 1)])
    bench.turn([*text(20), *text(20, 2)])
    bench.hint("release", [*text(20), *text(20, 2)], 20)
    bench.turn(text(60, 3))
    assert bench.found([*text(20), *text(20, 1)]) == {"device": 40}
    assert bench.found([*text(20), *text(20, 2)]) == {"device": 20}


def test_use_brings_the_dead_back() -> None:
    bench = Bench(device=100)
    bench.turn(text(30, 0))
    bench.turn(text(30, 1))
    bench.hint("release", text(30, 1))
    bench.turn(text(31, 1))
    bench.turn(text(60, 2))
    assert bench.found(text(30, 1)) == {"device": 30}


def test_hints_reach_the_host() -> None:
    for before in (False, True):
        bench = Bench(host=10)
        bench.turn(text(20, 0))
        bench.turn(text(20, 1))
        if before:
            bench.clear("device")
        assert bench.hint("pin", text(20, 0), seconds=10) == 20
        assert bench.hint("release", text(20, 1)) == 20
        bench.turn(text(20, 2))
        bench.clear("device")
        assert bench.found(text(20, 0)) == {"host": 20}
        assert bench.found(text(20, 1)) == {}


def test_hints_on_what_runs_act_when_it_ends() -> None:
    bench = Bench(device=100)
    running = bench.admit(text(30))
    assert running is not None
    bench.compute(running, text(30))
    bench.hint("pin", text(30), seconds=10)
    bench.cache.release(running)
    for seed in range(1, 5):
        bench.turn(text(40, seed))
    assert bench.found(text(30)) == {"device": 30}


def test_hints_that_reach_nothing() -> None:
    bench = Bench(host=10)
    assert bench.hint("pin", text(30)) == 0
    bench.turn(text(30))
    assert bench.hint("release", text(30), 30) == 0
    assert bench.hint("release", text(30), 20, 10) == 0
    assert bench.hint("release", text(30, 5)) == 0
    assert bench.hint("release", []) == 0
    assert bench.hint("pin", text(30), salt="b") == 0
    assert bench.found(text(30)) == {"device": 30}


# -- pictures and checks ---------------------------------------------------------------------------------------------


def test_state() -> None:
    bench = Bench(host=10, disk=20)
    bench.turn(text(30))
    bench.turn([*text(30), *text(6, 1)])
    running = bench.admit(text(20, 2))
    assert running is not None
    state = bench.cache.state()
    assert state.policy == "longturn"
    assert [(tier.name, tier.capacity, tier.used) for tier in state.tiers] == [
        ("device", 100, 56),
        ("host", 40, 36),
        ("disk", 80, 36),
    ]
    assert state.tiers[0].evictable == 36
    assert state.prefixes[0][:2] == (36, 2)


def test_events_tell_a_life() -> None:
    bench = Bench(host=10)
    allocation = bench.admit(text(10))
    assert allocation is not None
    bench.compute(allocation, text(10))
    bench.cache.release(allocation)
    bench.clear("device")
    bench.now = 5.0
    bench.turn(text(10))
    told = [(event.kind, event.tier, event.tokens, event.time) for event in bench.events()]
    assert told == [
        ("stored", "host", 8, 0.0),
        ("evicted", "device", 10, 0.0),
        ("cleared", "device", 10, 0.0),
        ("hit", "host", 8, 5.0),
        ("loaded", "host", 8, 5.0),
    ]
    assert bench.events() == []


def test_clear() -> None:
    bench = Bench(host=10, disk=20)
    bench.turn(text(20))
    running = bench.admit(text(25))
    assert running is not None
    assert bench.cache.clear("device") == 0  # in use
    bench.carry_out()
    bench.cache.release(running)
    assert bench.cache.clear("device") == 20
    bench.carry_out()
    assert bench.cache.clear("host") == 20
    bench.carry_out()
    assert bench.cache.clear("disk") == 20
    assert bench.found(text(20)) == {}
    assert bench.used() == {"device": 0, "host": 0, "disk": 0}
    for tier in ("attic", ""):
        with pytest.raises(ConfigError):
            bench.cache.clear(tier)
    with pytest.raises(ConfigError):
        Bench().cache.clear("disk")


@pytest.mark.parametrize(
    "changes",
    [{"device_tokens": 0}, {"host_pages": -1}, {"page_size": 0}, {"reuse_multiple": 0}, {"write_policy": "never"}],
)
def test_options_that_cannot_work(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LongturnOptions(**{"device_tokens": 10, **changes})


def test_an_unknown_order() -> None:
    with pytest.raises(ConfigError, match="mru"):
        LongturnCache(LongturnOptions(10, eviction="mru"))


@pytest.mark.parametrize("damage", ["lost slot", "shared slot", "lock", "queue", "count", "node", "keys"])
def test_damage_is_found(damage: str) -> None:
    bench = Bench(host=10)
    bench.turn(text(20))
    running = bench.admit(text(30))
    assert running is not None
    cache: Any = bench.cache
    node = running.where
    match damage:
        case "lost slot":
            cache._device.pool.allocate(1)
        case "shared slot":
            running.runs = Runs([*running.runs.slice(0, 29), Run(0, 1)])
        case "lock":
            node.locks += 1
        case "queue":
            cache._device._victims.offer(node)
        case "count":
            cache._device.tokens += 1
        case "node":
            running.committed -= 1
        case "keys":
            node.keys.pop()
    with pytest.raises(CacheCorruption):
        cache.check_integrity()


def test_empty_trees_of_salts_do_not_pile_up() -> None:
    cache = LongturnCache(LongturnOptions(64))
    for number in range(100):
        tokens = np.arange(8, dtype=np.int32)
        allocation = cache.admit(cache.lookup(tokens, str(number)), 8)
        assert allocation is not None
        cache.commit(allocation, tokens)
        cache.release(allocation)
        cache.check_integrity()
    assert len(cache._device._trees) <= 9
