"""Random lives of many requests at once over any policy: whatever happens, reused KV is the right KV.

The device is fake and its KV can be checked; pages really move, through the engine's mover and a host store that fails
at times. `walk` drives one policy from a seed, as the engine would, and also as it would not: requests are cancelled
before their pages have landed, and slots run out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from longturn.cache import Allocation
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.cache.radix import Tokens
from longturn.engine.mover import Mover
from longturn.store import HostStore, Page, Pages
from tests.cache.fake_device import FakeDevice

ALPHABET = 3
TOKEN_BYTES = 8
SALTS = ("", "", "", "a")


class FlakyStore(HostStore):
    """A store that can be told to fail: `reads` and `writes` are "fine", "some", "none" or "broken"."""

    reads = writes = "fine"

    def get(self, keys: Sequence[bytes]) -> list[Page | None]:
        if self.reads == "broken":
            raise OSError(5, "Input/output error")
        pages = super().get(keys)
        if self.reads == "fine":
            return pages
        whole = self.reads == "some"
        return [page if whole and crc32(key) % 4 else None for key, page in zip(keys, pages, strict=True)]

    def put(self, keys: Sequence[bytes], pages: Pages) -> int:
        if self.writes == "broken":
            raise OSError(28, "No space left on device")
        n = {"fine": len(keys), "some": len(keys) // 2, "none": 0}[self.writes]
        return super().put(keys[:n], pages[:n])


@dataclass(eq=False)
class Life:
    """A running request: its tokens so far, of which the first `done` are computed, and the answer still to come."""

    allocation: Allocation
    tokens: list[int]
    n_prompt: int
    left: int
    done: int | None = None


class Machine:
    """One policy over a fake device. `met` counts what has happened, by event and tier, for whoever looks at it."""

    def __init__(
        self, name: str, options: Mapping[str, Any], device: int, host: int, seed: int, met: Counter[str], unit: int = 1
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.cache = make_policy(name, options, Sizes(device, host, unit, real=True, clock=lambda: self.now))
        size = self.cache.page_size
        self.device = FakeDevice(device, size)
        self.host = FlakyStore(host * TOKEN_BYTES, size * TOKEN_BYTES) if host >= size else None
        self.mover = Mover(self.device, self.host, None)
        self.live: list[Life] = []
        self.met = met
        # A few texts that all prompts are made of, so that they share much.
        self.texts = [self._random(60) for _ in range(3)]

    # -- what may happen -----------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Up to three requests, then their moves. Some are gone before these are made."""
        for _ in range(self.rng.randint(1, 3)):
            life = self._admit(self._prompt())
            if life is not None and self.rng.random() < 0.2:
                self._release(life)
        self._settle()

    def step(self) -> None:
        """A chunk of a prompt, or a token, for some of the requests: first room for all, then the model."""
        planned = []
        for life in [life for life in self.live if self.rng.random() < 0.8]:
            assert life.done is not None
            most = min(self.rng.randint(1, 30), self.cache.chunk_tokens or 30)
            n = min(len(life.tokens) - life.done, most)
            if self._make_room(life, life.done + n):
                planned.append((life, n))
        self._settle()
        for life, n in planned:
            if life in self.live:
                assert life.done is not None
                self.device.compute(life.allocation, life.tokens, life.done, life.done + n)
        for life, n in planned:
            if life in self.live:
                self._computed(life, n)

    def cancel(self) -> None:
        """A request ends before it is done."""
        if self.live:
            self._release(self.rng.choice(self.live))

    def turns(self) -> None:
        """A conversation of a few turns, each sending the last one's answer back."""
        tokens = self._prompt()
        for _ in range(self.rng.randint(1, 4)):
            life = self._admit(tokens)
            self._settle()
            if life is None:
                return
            while life in self.live:
                assert life.done is not None
                n = len(life.tokens) - life.done
                if not self._make_room(life, life.done + n):
                    return
                self._settle()
                self.device.compute(life.allocation, life.tokens, life.done, life.done + n)
                self._computed(life, n)
            tokens = life.tokens + self._random(self.rng.randint(1, 8))

    def clear(self) -> None:
        """A tier forgets what is not in use."""
        self.cache.clear(self.rng.choice([tier.name for tier in self.cache.state().tiers]))

    def fail(self) -> None:
        """The host's store begins to fail, or stops."""
        if self.host is not None:
            self.host.reads = self.rng.choice(["fine", "fine", "some", "none", "broken"])
            self.host.writes = self.rng.choice(["fine", "fine", "fine", "some", "none", "broken"])

    # -- what must be so -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything holds, now that all moves are made."""
        self._settle()
        self.cache.check_integrity()
        if self.host is not None:
            used = sum(tier.used for tier in self.cache.state().tiers if tier.name == "host")
            assert self.host.stats().pages * self.cache.page_size == used
        for life in self.live:
            assert life.done is not None
            assert self.device.holds(life.allocation, life.tokens, life.done)

    def end(self) -> None:
        """When all requests are gone and all is cleared, nothing is left anywhere."""
        if self.host is not None:
            self.host.reads = self.host.writes = "fine"
        for life in list(self.live):
            self._release(life)
        self.check()
        for tier in self.cache.state().tiers:
            self.cache.clear(tier.name)
            self._settle()
        self.cache.check_integrity()
        assert [tier.used for tier in self.cache.state().tiers if tier.used] == []
        assert self.host is None or self.host.stats().pages == 0
        self.mover.close()

    # -- how -----------------------------------------------------------------------------------------------------

    def _admit(self, tokens: list[int]) -> Life | None:
        output = self.rng.choice([1, 2, 5, 30])
        if len(tokens) + output > self.cache.longest:
            return None
        salt = self.rng.choice(SALTS)
        prompt = _array(tokens)
        hit = self.cache.lookup(prompt, salt)
        if (fetch := self.cache.prefetch(hit)) is not None:
            self.mover.start_fetch(self.cache, fetch)
            while self.mover.fetching:
                self.mover.finish_fetches(self.cache, timeout=1.0)
        if self.rng.random() < 0.5:
            hit = self.cache.lookup(prompt, salt)
        if self.rng.random() < 0.2:
            # In between others come and go, and the hit is stale.
            if self.rng.random() < 0.5:
                self._admit(self._prompt())
            if self.rng.random() < 0.5:
                self.cancel()
        allocation = self.cache.admit(hit, output)
        if allocation is None:
            # With nobody running it would wait for ever.
            assert self.live
            self.met["no room"] += 1
            return None
        assert allocation.reused < len(tokens)
        life = Life(allocation, list(tokens), len(tokens), output)
        self.live.append(life)
        self.met["shared"] += any(other is not life and _overlap(other.allocation, allocation) for other in self.live)
        return life

    def _make_room(self, life: Life, length: int) -> bool:
        """Slots for so many tokens of a request, as the scheduler gets them: the youngest one goes first."""
        while life in self.live and not self.cache.extend(life.allocation, length):
            self.met["preempted"] += 1
            self._release(self.live[-1])
        return life in self.live

    def _computed(self, life: Life, n: int) -> None:
        """`n` more tokens of a request are computed: commit as the engine does, sample, and end it when due."""
        assert life.done is not None
        life.done += n
        ends = life.done == len(life.tokens) and life.left <= 1
        if n > 1 or life.done % self.cache.page_size == 0 or ends:
            self.cache.commit(life.allocation, _array(life.tokens[: life.done]))
        if life.done == len(life.tokens):
            life.tokens = life.tokens + self._random(1)
            life.left -= 1
        if ends:
            self._release(life)

    def _release(self, life: Life) -> None:
        self.live.remove(life)
        self.cache.release(life.allocation)

    def _settle(self) -> None:
        self.mover.carry_out(self.cache)
        for life in self.live:
            if life.done is None:
                life.done = life.allocation.reused
        for event in self.cache.events():
            self.met[f"{event.kind} {event.tier}"] += 1

    def _prompt(self) -> list[int]:
        """The beginning of one of the texts, perhaps with one token changed, perhaps with a new end."""
        text = self.rng.choice(self.texts)
        tokens = text[: self.rng.randint(1, len(text))]
        if self.rng.random() < 0.4:
            at = self.rng.randrange(len(tokens))
            tokens = [*tokens[:at], (tokens[at] + 1) % ALPHABET, *tokens[at + 1 :]]
        return tokens + self._random(self.rng.choice([0, 0, 5]))

    def _random(self, n: int) -> list[int]:
        return [self.rng.randrange(ALPHABET) for _ in range(n)]


def walk(
    name: str,
    options: Mapping[str, Any],
    device: int,
    host: int,
    seed: int,
    met: Counter[str],
    steps: int = 60,
    unit: int = 1,
) -> None:
    """`steps` random events over one policy of those sizes (in tokens), everything checked after each of them.

    unit: what a token stands for, for policies whose fixed thresholds are long.
    """
    machine = Machine(name, options, device, host, seed, met, unit)
    acts = [machine.admit, machine.step, machine.cancel, machine.turns, machine.clear, machine.fail]
    try:
        for act in machine.rng.choices(acts, [3, 14, 1, 5, 0.5, 1], k=steps):
            machine.now += machine.rng.random()
            act()
            machine.check()
    finally:
        machine.end()


def missing(met: Counter[str], wanted: Sequence[str], least: int = 5) -> list[tuple[str, int]]:
    """What the walks have hardly met, of what they are to test."""
    return [(what, met[what]) for what in wanted if met[what] < least]


def _array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def _overlap(a: Allocation, b: Allocation) -> bool:
    return any(x.start < y.stop and y.start < x.stop for x in a.runs for y in b.runs)
