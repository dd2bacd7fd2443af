"""Random lives of requests against a naive model: whatever happens, reused KV is the right KV."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from longturn.cache import ORDERS, WRITE_POLICIES, Allocation, Hint, LongturnCache, LongturnOptions
from longturn.engine.mover import Mover
from longturn.store import HostStore, Page, Pages
from tests.cache.fake_device import FakeDevice

PAGE = 4
ALPHABET = 3
# Host pages and whether there is a disk; most machines have both.
TIERS = [(30, True), (30, True), (8, True), (3, True), (0, True), (30, False), (3, False), (0, False)]
# What all machines together have met; the last test looks at it.
MET: Counter[str] = Counter()


class FlakyStore(HostStore):
    """A store that can be told to fail: `reads` and `writes` are "fine", "some", "none" or "broken"."""

    reads = writes = "fine"

    def get(self, keys: Sequence[bytes]) -> list[Page | None]:
        pages = super().get(keys)
        if self.reads == "broken":
            raise OSError(5, "Input/output error")
        if self.reads == "fine":
            return pages
        return [page if self.reads == "some" and key[0] % 4 else None for key, page in zip(keys, pages, strict=True)]

    def put(self, keys: Sequence[bytes], pages: Pages) -> int:
        if self.writes == "broken":
            raise OSError(28, "No space left on device")
        n = {"fine": len(keys), "some": len(keys) // 2, "none": 0}[self.writes]
        return super().put(keys[:n], pages[:n])


class AtOnce:
    """An executor without a thread: the stores above are for one."""

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args))
        return future

    def shutdown(self) -> None:
        pass


class CacheMachine(RuleBasedStateMachine):
    """Drives one cache, its stores and a fake device; remembers every committed sequence."""

    running = Bundle("running")

    @initialize(
        order=st.sampled_from(sorted(ORDERS)),
        write=st.sampled_from([*WRITE_POLICIES, "write_through"]),
        device=st.integers(24, 120),
        tiers=st.sampled_from(TIERS),
        reuse=st.sampled_from([1, 1, 1, 6]),
        flaky=st.booleans(),
    )
    def build(self, order: str, write: str, device: int, tiers: tuple[int, bool], reuse: int, flaky: bool) -> None:
        host, disk = tiers
        self.now = 0.0
        self.device = FakeDevice(device, PAGE)
        page_bytes = self.device.page_bytes
        self.host = FlakyStore(host * page_bytes, page_bytes) if host else None
        self.disk = FlakyStore(10_000 * page_bytes, page_bytes) if disk else None
        self.cache = LongturnCache(
            LongturnOptions(device, host, PAGE, order, write, "fake", reuse_multiple=reuse),
            self.disk,
            clock=lambda: self.now,
        )
        self.reuse = reuse
        self.flaky = flaky
        self.mover = Mover(self.device, self.host, self.disk)
        self.mover._reader.shutdown()
        self.mover._reader = AtOnce()  # type: ignore[assignment]
        self.live: dict[int, tuple[Allocation, list[int], int]] = {}
        self.committed: set[tuple[str, tuple[int, ...]]] = set()
        # Nothing was ever evicted: every token that was committed is found.
        self.lossless = True
        # The disk has all whole pages that were ever committed.
        self.durable = disk and write == "write_through"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for allocation, _, _ in self.live.values():
            self.cache.release(allocation)
        self.mover.finish_fetches(self.cache)
        self.mover.carry_out(self.cache)
        self.cache.check_integrity()
        self.cache.clear("device")
        device = self.cache.state().tiers[0]
        assert device.used == 0
        if self.host is not None:
            self.cache.clear("host")
            self.mover.carry_out(self.cache)
            assert self.host.stats().pages == 0
        self.take_events()
        self.mover.close()

    def take_events(self) -> None:
        for event in self.cache.events():
            MET[f"{event.kind} {event.tier}"] += 1
            if event.kind in ("evicted", "failed"):
                self.lossless = False

    def longest(self, tokens: list[int], salt: str) -> int:
        best = 0
        for other_salt, other in self.committed:
            if other_salt == salt:
                n = 0
                while n < min(len(other), len(tokens) - 1) and other[n] == tokens[n]:
                    n += 1
                best = max(best, n)
        return best

    def look_up(self, tokens: list[int], salt: str) -> Any:
        hit = self.cache.lookup(np.array(tokens, dtype=np.int32), salt)
        best = self.longest(tokens, salt)
        assert hit.total <= best
        if self.lossless and self.reuse == 1:
            assert hit.total == best
        if self.durable:
            pages = best // PAGE * PAGE
            assert hit.total >= pages // self.reuse * self.reuse
        return hit

    def start(self, tokens: list[int], new: int, salt: str) -> int | None:
        hit = self.look_up(tokens, salt)
        if hit.arriving:
            MET["admitted while pages arrive"] += 1
        allocation = self.cache.admit(hit, new)
        if allocation is None:
            MET["no room"] += 1
            return None
        assert allocation.reused == hit.total
        assert len(allocation.runs) == len(tokens) + new
        self.mover.carry_out(self.cache)
        assert allocation.reused % self.reuse == 0
        assert self.device.holds(allocation, tokens, allocation.reused)
        self.live[allocation.id] = (allocation, tokens, allocation.reused)
        self.take_events()
        return allocation.id

    def advance(self, which: int, chunk: int, generate: int) -> None:
        allocation, tokens, done = self.live[which]
        stop = min(done + chunk, len(tokens))
        if stop == len(tokens) and generate:
            tokens = tokens + [random.Random(generate).randrange(ALPHABET) for _ in range(generate)]
            missing = len(tokens) - len(allocation.runs)
            if missing > 0 and not self.cache.extend(allocation, len(tokens)):
                tokens = tokens[: len(allocation.runs)]
            stop = len(tokens)
        self.mover.carry_out(self.cache)
        assert self.device.holds(allocation, tokens, done)
        self.device.compute(allocation, tokens, done, stop)
        # In deterministic mode only whole multiples are kept.
        kept = stop // self.reuse * self.reuse
        self.cache.commit(allocation, np.array(tokens[:kept], dtype=np.int32))
        self.mover.carry_out(self.cache)
        assert self.device.holds(allocation, tokens, stop)
        self.committed.add((allocation.salt, tuple(tokens[:kept])))
        self.live[which] = (allocation, tokens, stop)
        self.take_events()

    @staticmethod
    def prompt(source: int, n: int, flip: int) -> list[int]:
        """One of a few texts, up to `n` tokens, with one token changed if `flip` lies inside."""
        rng = random.Random(source)
        tokens = [rng.randrange(ALPHABET) for _ in range(n)]
        if flip < n:
            tokens[flip] = (tokens[flip] + 1) % ALPHABET
        return tokens

    sources = st.integers(0, 3)
    lengths = st.integers(1, 44)
    flips = st.integers(0, 100)
    salts = st.sampled_from(["", "", "", "a"])

    @rule(target=running, source=sources, n=lengths, flip=flips, new=st.integers(0, 6), salt=salts)
    def admit(self, source: int, n: int, flip: int, new: int, salt: str) -> Any:
        which = self.start(self.prompt(source, n, flip), new, salt)
        return multiple() if which is None else which

    @rule(which=running, chunk=st.integers(1, 30), generate=st.integers(0, 9))
    def compute(self, which: int, chunk: int, generate: int) -> None:
        if which in self.live:
            self.advance(which, chunk, generate)

    @rule(which=consumes(running))
    def release(self, which: int) -> None:
        if which in self.live:
            self.cache.release(self.live.pop(which)[0])

    @rule(
        source=sources,
        turns=st.lists(st.tuples(lengths, flips, st.integers(0, 9), st.booleans()), min_size=1, max_size=4),
        salt=salts,
    )
    def turns(self, source: int, turns: list[tuple[int, int, int, bool]], salt: str) -> None:
        """Whole lives, one after the other; before some the device forgets."""
        for n, flip, generate, forget in turns:
            if forget:
                self.cache.clear("device")
                self.mover.carry_out(self.cache)
                self.lossless = False
            which = self.start(self.prompt(source, n, flip), 2, salt)
            if which is not None:
                self.advance(which, 100, generate)
                self.cache.release(self.live.pop(which)[0])

    @rule(source=sources, n=lengths, flip=flips, salt=salts)
    def prefetch(self, source: int, n: int, flip: int, salt: str) -> None:
        """Begin a fetch; other things happen before it ends."""
        tokens = self.prompt(source, n, flip)
        hit = self.look_up(tokens, salt)
        fetch = self.cache.prefetch(hit)
        if fetch is not None:
            MET["fetch"] += 1
            assert hit.disk
            self.mover.start_fetch(self.cache, fetch)
            assert self.cache.lookup(hit.tokens, salt).arriving
        self.take_events()

    @rule()
    def arrive(self) -> None:
        self.mover.finish_fetches(self.cache)
        assert not self.mover.fetching
        self.take_events()

    @rule(tier=st.sampled_from(["host", "disk"]), source=sources)
    def sink(self, tier: str, source: int) -> None:
        """Everything that can leaves device and host."""
        self.cache.clear("device")
        self.mover.carry_out(self.cache)
        if tier == "disk" and self.host is not None:
            self.cache.clear("host")
            self.mover.carry_out(self.cache)
        self.lossless = False

    @rule(
        kind=st.sampled_from(["pin", "release", "supersede", "expect", "priority"]),
        source=sources,
        start=st.integers(0, 20),
        length=st.integers(1, 20),
        seconds=st.floats(0, 10),
        salt=salts,
    )
    def hint(self, kind: Any, source: int, start: int, length: int, seconds: float, salt: str) -> None:
        array = np.array(self.prompt(source, 44, 100), dtype=np.int32)
        if self.cache.hint(Hint(kind, array, start, start + length, seconds, 3, salt)):
            MET[f"hint {kind}"] += 1

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def forget_the_disk(self) -> None:
        if self.flaky and self.disk is not None:
            self.cache.clear("disk")
            self.lossless = self.durable = False

    @rule(which=st.sampled_from(["host", "disk"]), seed=st.integers(0, 20))
    def lose_bytes(self, which: str, seed: int) -> None:
        """A store loses a page behind the cache's back."""
        store = self.host if which == "host" else self.disk
        if self.flaky and store is not None and store.stats().pages > seed:
            store.delete([sorted(store._frames)[seed]])
            self.lossless = False
            self.durable = self.durable and which == "host"

    @rule(
        which=st.sampled_from(["host", "disk"]),
        reads=st.sampled_from(["fine", "fine", "some", "none", "broken"]),
        writes=st.sampled_from(["fine", "fine", "fine", "some", "none", "broken"]),
    )
    def fail(self, which: str, reads: str, writes: str) -> None:
        store = self.host if which == "host" else self.disk
        if self.flaky and store is not None:
            store.reads, store.writes = reads, writes
            self.lossless = self.durable = False

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "cache"):
            self.mover.carry_out(self.cache)
            self.cache.check_integrity()
            for allocation, tokens, done in self.live.values():
                assert self.device.holds(allocation, tokens, done)
            if self.host is not None:
                in_table = sum(state.used for state in self.cache.state().tiers if state.name == "host") // PAGE
                assert self.host.stats().pages <= in_table


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(120))
def test_random_walk(seed: int) -> None:
    """The same rules without hypothesis, which likes small and similar lives: long and varied ones, and repeatable."""
    rng = random.Random(seed)
    machine = CacheMachine()
    orders, writes = sorted(ORDERS), [*WRITE_POLICIES, "write_through"]
    machine.build(
        orders[seed % len(orders)],
        rng.choice(writes),
        rng.randint(24, 120),
        rng.choice(TIERS),
        rng.choice([1, 1, 1, 6]),
        flaky=seed % 2 == 0,
    )

    def place() -> dict[str, Any]:
        return {
            "source": rng.randrange(4),
            "n": rng.randint(1, 44),
            "flip": rng.randrange(101),
            "salt": rng.choice(["", "", "", "a"]),
        }

    def turn() -> None:
        where = place()
        turns = [(rng.randint(1, 44), rng.randrange(101), rng.randrange(10), rng.random() < 0.3) for _ in range(2)]
        machine.turns(where["source"], turns, where["salt"])

    kinds = ["pin", "release", "supersede", "expect", "priority"]
    states = ["fine", "fine", "some", "none", "broken"]
    acts: list[tuple[int, Callable[[], Any]]] = [
        (6, lambda: machine.admit(**place(), new=rng.randrange(7))),
        (8, lambda: machine.compute(rng.choice([*machine.live, -1]), rng.randint(1, 30), rng.randrange(10))),
        (8, lambda: machine.release(rng.choice([*machine.live, -1]))),
        (6, turn),
        (6, lambda: machine.prefetch(**place())),
        (4, machine.arrive),
        (2, lambda: machine.sink(rng.choice(["host", "disk", "disk"]), 0)),
        (3, lambda: machine.hint(rng.choice(kinds), rng.randrange(4), rng.randrange(20), rng.randint(1, 20), 3.0, "")),
        (1, lambda: machine.wait(rng.random() * 4)),
        (1, lambda: rng.random() < 0.2 and machine.forget_the_disk()),
        (1, lambda: machine.lose_bytes(rng.choice(["host", "disk"]), rng.randrange(20))),
        (1, lambda: machine.fail(rng.choice(["host", "disk"]), rng.choice(states), rng.choice(["fine", *states]))),
    ]
    weights = [weight for weight, _ in acts]
    try:
        for _, act in rng.choices(acts, weights, k=60):
            act()
            machine.sound()
    finally:
        machine.teardown()


def test_the_walks_have_met_everything() -> None:
    """Runs after them: rules must not pass by what they are to test."""
    tiers = ("device", "host", "disk")
    wanted = [f"{kind} {tier}" for kind in ("hit", "cleared") for tier in tiers]
    wanted += ["stored host", "stored disk", "evicted device", "evicted host", "loaded host", "loaded disk"]
    wanted += ["failed host", "failed disk", "fetch", "fetched disk", "admitted while pages arrive", "no room"]
    wanted += [f"hint {kind}" for kind in ("pin", "release", "supersede", "expect", "priority")]
    assert [(what, MET[what]) for what in wanted if MET[what] < 5] == []
