"""The engine in its thread: called from many others, full, failing and closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longturn.engine import EngineService, Output, Request, SamplingParams
from longturn.errors import CacheCorruption, ConfigError, EngineStopped, PromptTooLong, QueueFull, RequestError
from longturn.ledger import RequestLine
from tests.engine.rig import PAGE_BYTES, Reference, random_tokens, service


class Client:
    """Submits a request and waits for its end."""

    def __init__(self, tokens: Sequence[int], n: int | None = 8, **more: Any) -> None:
        self.outputs: list[Output] = []
        self.ended = threading.Event()
        params = SamplingParams(max_tokens=n, temperature=0, ignore_eos=True)
        self.request = Request(np.array(tokens, dtype=np.int32), params, self._take, **more)

    def _take(self, output: Output) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.ended.set()

    def started(self) -> None:
        until = time.monotonic() + 20
        while not self.outputs:
            assert time.monotonic() < until
            time.sleep(0.001)

    def last(self) -> Output:
        assert self.ended.wait(20)
        return self.outputs[-1]

    @property
    def tokens(self) -> list[int]:
        self.last()
        return [token for output in self.outputs for token in output.token_ids]


def submit(running: EngineService, tokens: Sequence[int], n: int | None = 8, **more: Any) -> Client:
    client = Client(tokens, n, **more)
    running.submit(client.request)
    return client


class Gate:
    """Holds the model up until it is opened."""

    def __init__(self, running: EngineService) -> None:
        self.runner: Any = running._engine.runner
        self.execute = self.runner.execute
        self.open = threading.Event()
        self.runner.execute = self._wait

    def _wait(self, spans: Any) -> Any:
        assert self.open.wait(20)
        return self.execute(spans)


def idle(running: EngineService) -> None:
    running.check_integrity()
    state = running.state()
    assert (state.running, state.waiting) == (0, 0)
    assert state.cache.tiers[0].used == state.cache.tiers[0].evictable


def test_from_many_threads(llama: Path, right: Reference) -> None:
    prompts = [random_tokens(20 + i, i % 7) for i in range(24)]
    with service(llama) as running:
        clients: list[Client] = []
        threads = [
            threading.Thread(target=lambda prompt=prompt: clients.append(submit(running, prompt))) for prompt in prompts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            assert client.tokens == right(client.request.tokens.tolist())
        idle(running)


def test_cancel(llama: Path) -> None:
    with service(llama) as running:
        client = submit(running, random_tokens(30, 1), 1900)
        client.started()
        running.cancel(client.request.id)
        assert client.last().finish_reason == "cancelled"
        running.cancel("nobody")
        idle(running)


def test_a_full_queue(llama: Path) -> None:
    with service(llama, max_running=2, max_waiting=3) as running:
        gate = Gate(running)
        clients = [submit(running, random_tokens(10, i)) for i in range(5)]
        with pytest.raises(QueueFull) as full:
            submit(running, random_tokens(10, 9))
        assert full.value.status == 429
        assert full.value.retry_after >= 1
        # One that leaves makes room for another.
        running.cancel(clients[4].request.id)
        gate.open.set()
        assert clients[4].last().finish_reason in ("cancelled", "length")
        clients[4] = submit(running, random_tokens(10, 9))
        assert [client.last().finish_reason for client in clients] == ["length"] * 5
        idle(running)


def test_requests_that_cannot_be_served(llama: Path) -> None:
    with service(llama, context=100) as running:
        assert running.model.context == 100
        with pytest.raises(PromptTooLong):
            submit(running, random_tokens(100, 1))
        for tokens in ([], [-1], [300], [5, 2**31 - 1]):
            with pytest.raises(RequestError):
                submit(running, tokens)
        # None of them counts against the queue.
        assert running._pending == 0
        assert submit(running, random_tokens(99, 1), None).last().finish_reason == "length"


def test_a_small_pool_bounds_the_context(llama: Path) -> None:
    with service(llama, device_tokens=64) as running:
        assert running.model.context == 64
        with pytest.raises(PromptTooLong):
            submit(running, random_tokens(64, 1))
        assert len(submit(running, random_tokens(60, 1), None).tokens) == 4


@pytest.mark.parametrize("where", ["runner", "commit", "lookup", "release", "mover"])
def test_an_engine_that_fails_leaves_nobody_waiting(llama: Path, where: str) -> None:
    with service(llama, max_running=2) as running:
        gate = Gate(running)
        clients = [submit(running, random_tokens(10, i), 50) for i in range(4)]

        def fail(*_: Any) -> Any:
            raise CacheCorruption("broken for good")

        engine: Any = running._engine
        if where == "runner":
            gate.execute = fail
        elif where == "mover":
            engine.mover.carry_out = fail
        else:
            setattr(engine.cache, where, fail)
        # These come before the failure or after it, as it may be.
        clients += [submit(running, random_tokens(10, i), 50) for i in range(4, 6)]
        gate.open.set()
        for client in clients:
            last = client.last()
            assert sum(output.finish_reason is not None for output in client.outputs) == 1
            # Whoever had its whole answer by then has it.
            if where == "release" and last.finish_reason == "length":
                continue
            assert last.finish_reason == "error"
            # What broke is for the log, not for clients.
            assert isinstance(last.error, EngineStopped)
            assert "log" in str(last.error)
            assert "broken for good" not in str(last.error)
        running._thread.join(10)
        assert not running.alive
        assert isinstance(running.error, CacheCorruption)
        for call in (
            lambda: submit(running, random_tokens(10, 9)),
            running.state,
            running.check_integrity,
            lambda: running.clear_tier("device"),
        ):
            with pytest.raises(EngineStopped):
                call()
        running.cancel("nobody")


def test_close_ends_every_request(llama: Path) -> None:
    with service(llama, max_running=2) as running:
        gate = Gate(running)
        clients = [submit(running, random_tokens(10, i), 1000) for i in range(5)]
        closer = threading.Thread(target=running.close)
        closer.start()
        gate.open.set()
        assert [client.last().finish_reason for client in clients] == ["cancelled"] * 5
        closer.join(20)
        running.close()
        assert not running.alive
        with pytest.raises(EngineStopped):
            submit(running, random_tokens(10, 9))
        assert not [thread for thread in threading.enumerate() if thread is running._thread]


def test_questions_that_fail_harm_nobody(llama: Path, right: Reference) -> None:
    with service(llama) as running:
        with pytest.raises(ConfigError, match="attic"):
            running.clear_tier("attic")
        with pytest.raises(ConfigError):
            running.clear_tier("disk")
        assert submit(running, random_tokens(20, 1)).tokens == right(random_tokens(20, 1))
        assert running.alive


def test_lines_events_and_state(llama: Path) -> None:
    with service(llama, host_bytes=50 * PAGE_BYTES) as running:
        lines: list[RequestLine] = []
        events: list[Any] = []
        running.on_line(lines.append)
        running.on_events(events.extend)
        client = submit(running, random_tokens(100, 1), session="long talk")
        client.last()
        assert running.clear_tier("device") == 107
        submit(running, random_tokens(100, 1)).last()
        state = running.state()
        assert [line.session for line in lines] == ["long talk", None]
        assert lines[1].use.cached == {"host": 96}
        assert {"stored", "evicted", "cleared", "hit", "loaded"} == {event.kind for event in events}
        assert state.traffic_bytes["device-host"] == (96 + 96) // 16 * PAGE_BYTES
        assert [tier.name for tier in state.cache.tiers] == ["device", "host"]
        assert state.cache.prefixes[0][0] >= 96
        assert running.clear_tier("host") == 96
        idle(running)


def test_an_idle_engine_wakes_for_pages_that_arrive(llama: Path, right: Reference, tmp_path: Path) -> None:
    tiers = {"host_bytes": 50 * PAGE_BYTES, "disk_bytes": 1 << 20, "disk_dir": tmp_path}
    prompt = random_tokens(300, 1)
    with service(llama, **tiers) as running:
        submit(running, prompt).last()
        running.clear_tier("device")
        running.clear_tier("host")
        began = time.monotonic()
        client = submit(running, prompt)
        assert client.tokens == right(prompt)
        assert client.last().line.use.cached == {"disk": 288}  # type: ignore[union-attr]
        assert time.monotonic() - began < 5
        idle(running)
