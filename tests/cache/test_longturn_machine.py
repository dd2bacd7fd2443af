"""Random lives of requests against a naive model: whatever happens, reused KV is the right KV."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from longturn.cache import ORDERS, WRITE_POLICIES, Hint, LongturnCache, LongturnOptions
from longturn.engine.mover import Mover
from longturn.store import HostStore
from tests.cache.fake_device import FakeDevice

PAGE = 4
ALPHABET = 3


class CacheMachine(RuleBasedStateMachine):
    """Drives one cache, its stores and a fake device; remembers every committed sequence."""

    running = Bundle("running")

    @initialize(
        order=st.sampled_from(sorted(ORDERS)),
        write=st.sampled_from(WRITE_POLICIES),
        device=st.integers(24, 90),
        host=st.sampled_from([0, 3, 30]),
        disk=st.booleans(),
        multiple=st.sampled_from([1, 1, 6]),
    )
    def build(self, order: str, write: str, device: int, host: int, disk: bool, multiple: int) -> None:
        self.now = 0.0
        self.device = FakeDevice(device, PAGE)
        self.host = HostStore(host * self.device.page_bytes, self.device.page_bytes) if host else None
        self.disk = HostStore(10_000 * self.device.page_bytes, self.device.page_bytes) if disk else None
        self.cache = LongturnCache(
            LongturnOptions(device, host, PAGE, order, write, "fake", reuse_multiple=multiple),
            self.disk,
            clock=lambda: self.now,
        )
        self.multiple = multiple
        self.mover = Mover(self.device, self.host, self.disk)
        self.live: dict[int, tuple[object, list[int], int]] = {}
        self.committed: set[tuple[str, tuple[int, ...]]] = set()
        self.lossless = True

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for allocation, _, _ in self.live.values():
            self.cache.release(allocation)
        self.mover.carry_out(self.cache)
        self.cache.check_integrity()
        self.cache.clear("device")
        device = self.cache.state().tiers[0]
        assert device.used == 0
        self.mover.close()

    def longest(self, tokens: list[int], salt: str) -> int:
        best = 0
        for other_salt, other in self.committed:
            if other_salt == salt:
                n = 0
                while n < min(len(other), len(tokens) - 1) and other[n] == tokens[n]:
                    n += 1
                best = max(best, n)
        return best

    @rule(
        target=running,
        seed=st.integers(0, 40),
        n=st.integers(1, 40),
        flip=st.integers(0, 60),
        new=st.integers(0, 6),
        salt=st.sampled_from(["", "a"]),
        prefetch=st.booleans(),
    )
    def admit(self, seed: int, n: int, flip: int, new: int, salt: str, prefetch: bool) -> int:
        source = random.Random(seed // 8)
        tokens = [source.randrange(ALPHABET) for _ in range(n)]
        if flip < n:
            tokens[flip] = (tokens[flip] + 1) % ALPHABET
        array = np.array(tokens, dtype=np.int32)
        hit = self.cache.lookup(array, salt)
        assert hit.total <= self.longest(tokens, salt)
        if self.lossless and self.multiple == 1:
            assert hit.total == self.longest(tokens, salt)
        if prefetch and (fetch := self.cache.prefetch(hit)) is not None:
            self.mover.start_fetch(self.cache, fetch)
            assert self.cache.lookup(array, salt).arriving
            self.mover.finish_fetches(self.cache, 5.0)
            hit = self.cache.lookup(array, salt)
        self.cache.check_integrity()
        evicted = len([event for event in self.cache.events() if event.kind == "evicted"])
        allocation = self.cache.admit(hit, n - hit.total + new)
        if any(event.kind == "evicted" for event in self.cache.events()) or evicted:
            self.lossless = False
        if allocation is None:
            return -1
        self.mover.carry_out(self.cache)
        assert allocation.reused % self.multiple == 0
        assert self.device.holds(allocation, tokens, allocation.reused)
        self.live[allocation.id] = (allocation, tokens, allocation.reused)
        return allocation.id

    @rule(which=running, chunk=st.integers(1, 30), generate=st.integers(0, 9))
    def compute(self, which: int, chunk: int, generate: int) -> None:
        if which not in self.live:
            return
        allocation, tokens, done = self.live[which]
        stop = min(done + chunk, len(tokens))
        if stop == len(tokens) and generate:
            tokens = tokens + [random.Random(generate).randrange(ALPHABET) for _ in range(generate)]
            missing = len(tokens) - len(allocation.runs)
            if missing > 0 and not self.cache.extend(allocation, missing):
                tokens = tokens[: len(allocation.runs)]
            stop = len(tokens)
        self.mover.carry_out(self.cache)
        assert self.device.holds(allocation, tokens, done)
        self.device.compute(allocation, tokens, done, stop)
        self.cache.commit(allocation, np.array(tokens[:stop], dtype=np.int32))
        self.mover.carry_out(self.cache)
        assert self.device.holds(allocation, tokens, stop)
        self.committed.add((allocation.salt, tuple(tokens[:stop])))
        self.live[which] = (allocation, tokens, stop)
        if any(event.kind == "evicted" for event in self.cache.events()):
            self.lossless = False

    @rule(
        seed=st.integers(0, 40),
        n=st.integers(8, 40),
        flip=st.integers(0, 120),
        generate=st.integers(0, 9),
        salt=st.sampled_from(["", "", "a"]),
        prefetch=st.booleans(),
    )
    def turn(self, seed: int, n: int, flip: int, generate: int, salt: str, prefetch: bool) -> None:
        """A whole life at once."""
        which = self.admit(seed, n, flip, 2, salt, prefetch)
        self.compute(which, 100, generate)
        self.release(which)

    @rule(which=running)
    def release(self, which: int) -> None:
        if which in self.live:
            self.cache.release(self.live.pop(which)[0])

    @rule(
        kind=st.sampled_from(["pin", "release", "supersede", "expect", "priority"]),
        which=running,
        start=st.integers(0, 20),
        length=st.integers(1, 20),
        seconds=st.floats(0, 10),
    )
    def hint(self, kind: str, which: int, start: int, length: int, seconds: float) -> None:
        if which in self.live:
            allocation, tokens, _ = self.live[which]
            array = np.array(tokens, dtype=np.int32)
            self.cache.hint(Hint(kind, array, start, start + length, seconds, 3, allocation.salt))

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(tier=st.sampled_from(["device", "host", "disk"]), rarely=st.integers(0, 5))
    def clear(self, tier: str, rarely: int) -> None:
        names = [state.name for state in self.cache.state().tiers]
        if tier in names and rarely == 0:
            self.cache.clear(tier)
            self.mover.carry_out(self.cache)
            self.lossless = False

    @rule(which=st.sampled_from(["host", "disk"]), seed=st.integers(0, 20))
    def lose_bytes(self, which: str, seed: int) -> None:
        """A store loses a page behind the cache's back."""
        store = self.host if which == "host" else self.disk
        if store is not None and store.stats().pages > seed:
            keys = sorted(store._frames)
            store.delete([keys[seed]])
            self.lossless = False

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "cache"):
            self.mover.carry_out(self.cache)
            self.cache.check_integrity()
            if self.host is not None:
                in_table = sum(state.used for state in self.cache.state().tiers if state.name == "host") // PAGE
                assert self.host.stats().pages <= in_table


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_page_and_alphabet_collide_often() -> None:
    if ALPHABET**PAGE > 100:
        pytest.fail("the machine above must meet shared prefixes often")
