"""Who goes first, under every order of the table."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.cache.eviction import DEAD, EXPECTED, NORMAL, ORDERS, PINNED, Recency, Usage, Victims, order
from longturn.errors import ConfigError


class Item:
    def __init__(self, name: str, usage: Usage) -> None:
        self.name = name
        self.usage = usage


class Bench:
    """Items in order of creation, touched as told."""

    def __init__(self, name: str, **flops: float) -> None:
        self.recency = Recency(**flops)
        self.victims: Victims[Item] = Victims(order(name), self.recency)
        self.items: dict[str, Item] = {}

    def new(self, name: str, depth: int = 0, n: int = 16, priority: int = 0) -> Item:
        item = self.items[name] = Item(name, self.recency.fresh(depth, n))
        item.usage.priority = priority
        self.victims.offer(item)
        return item

    def touch(self, *names: str) -> None:
        for name in names:
            self.recency.touch(self.items[name].usage)
            self.victims.offer(self.items[name])

    def protect(self, name: str, protection: int, until: float = 0.0) -> None:
        self.items[name].usage.protection = protection
        self.items[name].usage.until = until
        self.victims.offer(self.items[name])

    def drain(self, now: float = 0.0) -> str:
        out = ""
        while (item := self.victims.pop(now)) is not None:
            assert item not in self.victims
            out += item.name
        assert len(self.victims) == 0
        return out


def used(name: str) -> Bench:
    """a, b, c, d are made in this order; then a is used three times, b twice, d once, b last."""
    bench = Bench(name)
    for item, priority in zip("abcd", (0, 1, 2, 1), strict=True):
        bench.new(item, priority=priority)
    bench.touch("a", "b", "a", "a", "d", "b")
    return bench


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("lru", "cadb"),
        ("lfu", "cdba"),
        ("fifo", "abcd"),
        ("slru", "cadb"),  # c alone had a single use
        ("priority", "adbc"),
        ("cost", "cdba"),  # all cost the same here, so uses count
    ],
)
def test_order(name: str, wanted: str) -> None:
    assert used(name).drain() == wanted


def test_the_table_is_tested_whole() -> None:
    assert set(ORDERS) == {"lru", "lfu", "fifo", "slru", "priority", "cost"}
    with pytest.raises(ConfigError, match="lru"):
        order("mru")


def test_slru_keeps_what_was_used_twice() -> None:
    bench = Bench("slru")
    for name in "abc":
        bench.new(name)
    bench.touch("a")
    bench.new("d")
    # By recency alone a would go before d.
    assert bench.drain() == "bcda"


def test_cost_keeps_what_is_dear_to_compute() -> None:
    bench = Bench("cost", linear_flops=1.0, attention_flops=0.01)
    bench.new("a", depth=10_000)
    bench.new("b", depth=0)
    bench.new("c", depth=1000)
    # A token behind ten thousand others costs more attention.
    assert bench.drain() == "bca"
    bench = Bench("cost", linear_flops=1.0)
    for name in "abc":
        bench.new(name)
    bench.touch("a", "a", "b")
    assert bench.drain() == "cba"


def test_cost_ages() -> None:
    """What was dear once and is not used any more goes in the end, in favour of what is new."""
    bench = Bench("cost", linear_flops=1.0)
    bench.new("a")
    bench.touch(*"aaaa")
    for i in range(20):
        bench.new(f"{i % 10}")
        victim = bench.victims.pop(0.0)
        assert victim is not None
        if victim.name == "a":
            break
    assert victim.name == "a"
    assert i > 2


def test_protection_comes_before_order() -> None:
    for name in ORDERS:
        bench = used(name)
        bench.protect("a", PINNED, until=10)
        bench.protect("c", EXPECTED, until=10)
        bench.protect("b", DEAD)
        assert bench.drain() == "bdca"


def test_protection_ends() -> None:
    bench = Bench("lru")
    for name in "abcd":
        bench.new(name)
    bench.protect("a", PINNED, until=5)
    bench.protect("b", EXPECTED, until=8)
    first = bench.victims.pop(4.9)
    assert first is not None
    assert first.name == "c"
    assert bench.items["a"].usage.protection == PINNED
    # At 5 the pin ends and a is again the oldest; b is still expected.
    assert bench.drain(now=5) == "adb"
    assert bench.items["a"].usage.protection == NORMAL


def test_a_longer_protection_replaces_a_shorter() -> None:
    bench = Bench("lru")
    for name in "ab":
        bench.new(name)
    bench.protect("a", PINNED, until=5)
    bench.protect("a", PINNED, until=50)
    assert bench.drain(now=20) == "ba"


def test_a_protection_that_ends_while_in_use_has_ended() -> None:
    bench = Bench("lru")
    for name in "ab":
        bench.new(name)
    bench.protect("a", PINNED, until=5)
    bench.victims.withdraw(bench.items["a"])
    bench.victims.pop(6.0)
    bench.victims.offer(bench.items["a"])
    assert bench.drain(now=7) == "a"
    assert bench.items["a"].usage.protection == NORMAL


def test_use_brings_the_dead_back() -> None:
    bench = Bench("lru")
    for name in "ab":
        bench.new(name)
    bench.protect("b", DEAD)
    bench.touch("b")
    assert bench.drain() == "ab"


def test_a_copy_is_not_queued() -> None:
    bench = used("lru")
    bench.protect("a", PINNED, until=9)
    usage = bench.items["a"].usage
    copy = usage.copy()
    assert copy.ticket == 0
    for name in set(Usage.__slots__) - {"ticket"}:
        assert getattr(copy, name) == getattr(usage, name)


@pytest.mark.parametrize("protection", [NORMAL, PINNED])
def test_use_does_not_fill_the_memory(protection: int) -> None:
    bench = Bench("lru")
    for name in "abc":
        bench.new(name)
    for i in range(1000):
        bench.items["a"].usage.protection, bench.items["a"].usage.until = protection, 1e9 + i
        bench.touch("a")
        bench.victims.withdraw(bench.items["b"])
        bench.victims.offer(bench.items["b"])
    assert len(bench.victims._heap) <= 66
    assert len(bench.victims._timers) <= 66
    assert bench.drain() == "bca"


@given(st.sampled_from(sorted(ORDERS)), st.integers(0, 10_000))
def test_against_a_sorted_list(name: str, seed: int) -> None:
    """Random lives; what is popped is always the least."""
    rng = random.Random(seed)
    bench = Bench(name, linear_flops=1.0, attention_flops=0.1)
    queued: set[str] = set()
    for i in range(150):
        match rng.randrange(6):
            case 0 | 1:
                bench.new(f"{i}", depth=rng.randrange(50), priority=rng.randrange(3))
                queued.add(f"{i}")
            case 2 | 3 if queued:
                bench.touch(rng.choice(sorted(queued)))
            case 4 if queued:
                gone = rng.choice(sorted(queued))
                queued.remove(gone)
                bench.victims.withdraw(bench.items[gone])
                bench.victims.withdraw(bench.items[gone])
            case 5:
                victim = bench.victims.pop(0.0)
                assert (victim is None) == (not queued)
                if victim is not None:
                    least = min(ORDERS[name](bench.items[other].usage) for other in queued)
                    assert ORDERS[name](victim.usage) == least
                    queued.remove(victim.name)
        assert len(bench.victims) == len(queued)


def test_an_item_may_move_to_another_queue() -> None:
    """What is left of it in the first queue does not revive when the second one gives it as many turns."""
    bench = Bench("lru")
    other: Victims[Item] = Victims(ORDERS["lru"], bench.recency)
    bench.new("a")
    item = bench.items["a"]
    for _ in range(5):
        bench.victims.withdraw(item)
        other.offer(item)
        assert bench.victims.pop(0.0) is None
        other.withdraw(item)
        bench.victims.offer(item)
        assert other.pop(0.0) is None
    assert bench.victims.pop(0.0) is item
