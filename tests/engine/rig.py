"""An engine that is stepped by hand, over a tiny model, and what its requests gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from longturn.engine import EngineOptions, EngineService, Output, Request, SamplingParams
from longturn.engine.build import Built, build
from longturn.engine.constraint import Grammars
from longturn.ledger import RequestLine
from longturn.store import DiskStore, HostStore

PAGE = 16
# KV of the tiny models in float32: 2 layers, keys and values, 2 heads of 16.
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
PAGE_BYTES = PAGE * TOKEN_BYTES


def random_tokens(n: int, seed: int) -> list[int]:
    """Readable characters, no special tokens."""
    return np.random.default_rng(seed).integers(33, 126, n).tolist()


class Asked:
    """A request and what has come of it so far."""

    def __init__(self, tokens: Sequence[int], params: SamplingParams, **fields: Any) -> None:
        self.outputs: list[Output] = []
        self.request = Request(np.array(tokens, dtype=np.int32), params, self.outputs.append, **fields)

    @property
    def prompt(self) -> list[int]:
        return self.request.tokens.tolist()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def logprobs(self) -> list[tuple[float | None, list[tuple[int, float]] | None]]:
        return [(sample.logprob, sample.top) for output in self.outputs for sample in output.samples]

    @property
    def done(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].finish_reason is not None

    @property
    def last(self) -> Output:
        assert self.done
        return self.outputs[-1]

    @property
    def reason(self) -> str | None:
        return self.last.finish_reason

    @property
    def line(self) -> RequestLine:
        assert self.last.line is not None
        return self.last.line

    @property
    def cached(self) -> dict[str, int]:
        return dict(self.line.use.cached)


def options(folder: Path, **changes: Any) -> EngineOptions:
    """Options for a tiny model in float32 on one thread, with a device tier alone."""
    usual: dict[str, Any] = {
        "model": str(folder),
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "device_tokens": 4000,
        "host_bytes": 0,
        "page_size": PAGE,
    }
    return EngineOptions(**{**usual, **changes})


class Rig:
    """One engine without a thread: nothing happens between two calls."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.engine = built.engine
        self.cache = built.engine.cache
        self.scheduler = built.engine.scheduler
        self.runner = built.engine.runner
        self.lines: list[RequestLine] = []
        self.engine.on_line = self.lines.append
        self.now: float | None = None
        self.grammars = Grammars(self.engine.tokenizer, self.runner.shape.vocab_size, self.engine.eos_ids)

    def stop_the_clock(self) -> None:
        """From here on time passes only when a test moves `now`."""
        self.now = 1000.0
        self.engine.clock = self.scheduler._clock = lambda: self.now

    @property
    def host(self) -> HostStore:
        return next(store for store in self.built.stores if isinstance(store, HostStore))

    @property
    def disk(self) -> DiskStore:
        return next(store for store in self.built.stores if isinstance(store, DiskStore))

    def submit(
        self,
        tokens: Sequence[int],
        n: int | None = 8,
        *,
        salt: str = "",
        priority: int = 0,
        hints: Sequence[Any] = (),
        arrived: float | None = None,
        **params: Any,
    ) -> Asked:
        fields = {"salt": salt, "priority": priority, "hints": hints}
        if arrived is not None or self.now is not None:
            fields["arrived"] = self.now if arrived is None else arrived
        params = {"temperature": 0, "ignore_eos": True, **params}
        asked = Asked(tokens, SamplingParams(max_tokens=n, **params), **fields)
        grammar = asked.request.params.grammar
        self.engine.add(asked.request, None if grammar is None else self.grammars.start(grammar))
        return asked

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            if not self.engine.step():
                self.engine.mover.finish_fetches(self.cache, 5.0)
            self.cache.check_integrity()

    def run(self, *asked: Asked, limit: int = 10_000) -> None:
        """Step until all of `asked` are done."""
        for _ in range(limit):
            if all(one.done for one in asked):
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def ask(self, tokens: Sequence[int], n: int | None = 8, **more: Any) -> Asked:
        asked = self.submit(tokens, n, **more)
        self.run(asked)
        return asked

    def clear(self, *tiers: str) -> None:
        for tier in tiers:
            self.cache.clear(tier)
            self.engine.mover.carry_out(self.cache)

    def tiers(self) -> dict[str, int]:
        """Tokens used in each tier."""
        return {tier.name: tier.used for tier in self.cache.state().tiers}

    def idle(self) -> None:
        """Nobody is here any more, and all that is held is the cache's own."""
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        self.engine.mover.carry_out(self.cache)
        self.cache.check_integrity()
        device = self.cache.state().tiers[0]
        assert device.used == device.evictable


@contextmanager
def rig(folder: Path, **changes: Any) -> Iterator[Rig]:
    """An engine over `folder`; see `options`."""
    built = build(options(folder, **changes))
    try:
        yield Rig(built)
    finally:
        built.close()


@contextmanager
def service(folder: Path, **changes: Any) -> Iterator[EngineService]:
    """The same engine in its thread."""
    running = EngineService.start(options(folder, **changes))
    try:
        yield running
    finally:
        running.close()


class Reference:
    """Greedy answers of an engine without a cache, each computed alone and once."""

    def __init__(self, folder: Path) -> None:
        self._built = build(options(folder, cache=False))
        self._rig = Rig(self._built)
        self._known: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, tokens: Sequence[int], n: int = 8) -> list[int]:
        known = self._known.get(tuple(tokens), [])
        if len(known) < n:
            known = self._known[tuple(tokens)] = self._rig.ask(tokens, n).tokens
        return known[:n]

    def close(self) -> None:
        self._built.close()
