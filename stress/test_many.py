"""Two hundred requests at once over a pool that is too small, cancelled at random from several threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longturn.cache import Hint
from longturn.engine import EngineOptions, EngineService, Output, Request, SamplingParams
from longturn.ledger import RequestLine
from tests.tiny_model import build_tiny_model

REQUESTS = 200
THREADS = 5
PAGE_BYTES = 16 * 512


class Client:
    """One request, its outputs, and whether anyone will cancel it."""

    def __init__(self, tokens: Sequence[int], salt: str, doomed: bool, rng: random.Random, stop: str | None) -> None:
        self.prompt = list(tokens)
        self.doomed = doomed
        self.outputs: list[Output] = []
        self.ended = threading.Event()
        self.n = rng.randint(1, 40)
        array = np.array(tokens, dtype=np.int32)
        kinds: list[Any] = ["pin", "expect", "release", "supersede", "priority"]
        hints = [Hint(rng.choice(kinds), array, 0, rng.randint(1, len(tokens)), 5.0, 2, salt)]
        self.request = Request(
            array,
            SamplingParams(max_tokens=self.n, temperature=0, ignore_eos=True, stop=() if stop is None else (stop,)),
            self._take,
            salt=salt,
            priority=rng.choice([0, 0, 0, 1]),
            hints=hints if rng.random() < 0.2 else (),
        )

    def _take(self, output: Output) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.ended.set()

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]


def clients() -> list[Client]:
    """Conversations that share beginnings, long and short ones, under three salts."""
    rng = random.Random(5)
    trunks = [[rng.randint(33, 125) for _ in range(n)] for n in (40, 150, 300)]
    made: list[Client] = []
    for i in range(REQUESTS):
        tokens = list(rng.choice([[], *trunks]))
        tokens = tokens[: rng.randint(0, len(tokens))] if rng.random() < 0.3 else tokens
        tokens += [rng.randint(33, 125) for _ in range(rng.choice([1, 10, 60, 200]))]
        if made and rng.random() < 0.15:
            tokens = list(rng.choice(made).prompt)
        stop = rng.choice("etaoi ") if rng.random() < 0.2 else None
        made.append(Client(tokens, rng.choice(["", "", "alice", "bob"]), i % 4 == 0, rng, stop))
    return made


def drive(service: EngineService, mine: list[Client], seed: int) -> None:
    """Submit in bursts, and cancel the doomed at some moment."""
    rng = random.Random(seed)
    alive: list[Client] = []
    for client in mine:
        service.submit(client.request)
        alive.append(client)
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.01)
        for other in [other for other in alive if other.doomed and rng.random() < 0.15]:
            service.cancel(other.request.id)
            alive.remove(other)
    for other in [other for other in alive if other.doomed]:
        time.sleep(rng.random() * 0.02)
        service.cancel(other.request.id)


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
def test_two_hundred(tmp_path: Path, write_policy: str) -> None:
    folder = str(build_tiny_model(tmp_path / "model"))
    common: dict[str, Any] = {"model": folder, "dtype": "float32", "device": "cpu", "threads": 1, "chunk_tokens": 128}
    service = EngineService.start(
        EngineOptions(
            **common,
            device_tokens=900,
            host_bytes=60 * PAGE_BYTES,
            disk_bytes=200 * PAGE_BYTES,
            disk_dir=tmp_path / "disk",
            write_policy=write_policy,
            max_running=12,
        )
    )
    everyone = clients()
    lines: list[RequestLine] = []
    service.on_line(lines.append)
    try:
        threads = [
            threading.Thread(target=drive, args=(service, everyone[i::THREADS], 100 + i)) for i in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            service.check_integrity()
            service.state()
            time.sleep(0.05)
        for client in everyone:
            assert client.ended.wait(60)
        # Every page is accounted for, and nobody is left.
        service.check_integrity()
        state = service.state()
        assert (state.running, state.waiting) == (0, 0)
        device = state.cache.tiers[0]
        assert device.used == device.evictable
        assert service._pending == 0
        assert service.clear_tier("device") == device.used
        service.clear_tier("host")
        service.check_integrity()
        assert [tier.used for tier in service.state().cache.tiers[:2]] == [0, 0]
    finally:
        service.close()

    assert sorted(line.request_id for line in lines) == sorted(client.request.id for client in everyone)
    assert sum(line.use.cached_total for line in lines) > 0
    reasons = {client.outputs[-1].finish_reason for client in everyone}
    assert reasons <= {"length", "stop", "cancelled"}
    for client in everyone:
        assert sum(output.finish_reason is not None for output in client.outputs) == 1
        if client.outputs[-1].finish_reason == "cancelled":
            assert client.doomed

    bare = EngineService.start(EngineOptions(**common, cache=False, host_bytes=0, device_tokens=4000))
    try:
        for client in random.Random(1).sample(everyone, 50):
            alone = Client(client.prompt, "", False, random.Random(), None)
            alone.request.params = client.request.params
            bare.submit(alone.request)
            assert alone.ended.wait(60)
            # Those that were cancelled got the beginning of the same answer.
            n = len(client.tokens)
            assert client.tokens == alone.tokens[:n]
            if client.outputs[-1].finish_reason != "cancelled":
                assert (client.tokens, client.text) == (alone.tokens, alone.text)
            else:
                assert alone.text.startswith(client.text)
    finally:
        bare.close()
