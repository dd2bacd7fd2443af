"""`longturn serve` is killed while it writes pages, ten times; what it finds on its disk afterwards is never wrong."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from longturn.engine import EngineOptions, EngineService, Request, SamplingParams
from tests.tiny_model import build_tiny_model

KILLS = 10
ANSWER = 12


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Servers are forked from a process that has imported the packages already: starting ten takes seconds, not minutes.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["stress.test_server_kill", "longturn.engine.runner.torch_runner", "longturn.serve.app"])


def serve(arguments: list[str], log: Path) -> None:
    """What the program `longturn` does, in a forked process."""
    from longturn.cli import app

    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    app(["serve", *arguments])


class Server:
    """A server in a process of its own."""

    def __init__(self, model: Path, disk: Path, log: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        arguments = ["--model", str(model), "--port", str(port), "--dtype", "float32", "--threads", "1"]
        arguments += ["--device-tokens", "3000", "--host-bytes", "1MiB", "--chunk-tokens", "64"]
        arguments += ["--disk-bytes", "64MiB", "--disk-dir", str(disk)]
        self.process = FORKS.Process(target=serve, args=(arguments, log))
        self.process.start()
        until = time.monotonic() + 60
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            assert self.process.is_alive(), log.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)

    def ask(self, client: httpx.Client, prompt: list[int]) -> dict[str, Any]:
        body = {"model": "", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0}
        body["model"] = client.get(f"{self.url}/v1/models").json()["data"][0]["id"]
        answer = client.post(f"{self.url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)
        assert self.process.exitcode == -signal.SIGKILL


@contextmanager
def bare(model: Path) -> Iterator[Any]:
    """Answers of an engine without a cache."""
    service = EngineService.start(
        EngineOptions(model=str(model), dtype="float32", threads=1, cache=False, host_bytes=0, device_tokens=3000)
    )
    known: dict[tuple[int, ...], str] = {}

    def answer(prompt: list[int]) -> str:
        if tuple(prompt) not in known:
            texts: list[str] = []
            ended = threading.Event()

            def take(output: Any) -> None:
                texts.append(output.text)
                if output.finish_reason is not None:
                    ended.set()

            params = SamplingParams(max_tokens=ANSWER, temperature=0)
            service.submit(Request(np.array(prompt, dtype=np.int32), params, take))
            assert ended.wait(30)
            known[tuple(prompt)] = "".join(texts)
        return known[tuple(prompt)]

    try:
        yield answer
    finally:
        service.close()


def pour(server: Server, prompts: list[list[int]], answers: dict[int, str]) -> None:
    """Send prompts until the server is gone."""
    with httpx.Client(timeout=20) as client, suppress(httpx.TransportError):
        for prompt in prompts:
            answers[id(prompt)] = server.ask(client, prompt)["choices"][0]["text"]


def test_killed_ten_times(tmp_path: Path) -> None:
    rng = random.Random()
    model, disk = build_tiny_model(tmp_path / "model"), tmp_path / "disk"
    trunk = [rng.randint(33, 125) for _ in range(200)]
    old: list[list[int]] = []
    from_disk = checked = 0
    with bare(model) as right:
        for _ in range(KILLS + 1):
            server = Server(model, disk, tmp_path / "log")
            try:
                # What an earlier life left on disk, and what it may have left half.
                with httpx.Client(timeout=20) as client:
                    for prompt in rng.sample(old, min(len(old), 8)):
                        answer = server.ask(client, prompt)
                        assert answer["choices"][0]["text"] == right(prompt)
                        from_disk += answer["usage"]["longturn"]["cached"].get("disk", 0)
                        checked += 1
                assert not list(disk.rglob("*.tmp"))
                fresh = [
                    trunk[: rng.randint(0, 200)] + [rng.randint(33, 125) for _ in range(rng.randint(50, 400))]
                    for _ in range(200)
                ]
                answers: dict[int, str] = {}
                threads = [threading.Thread(target=pour, args=(server, fresh[i::4], answers)) for i in range(4)]
                for thread in threads:
                    thread.start()
                time.sleep(rng.uniform(0.05, 1.0))
            finally:
                server.kill()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            answered = [prompt for prompt in fresh if id(prompt) in answers]
            for prompt in rng.sample(answered, min(len(answered), 10)):
                assert answers[id(prompt)] == right(prompt)
            # Those that were answered, and some that were under way when the end came.
            old += answered[-20:]
            old += [prompt for prompt in fresh if id(prompt) not in answers][:4]
    assert checked > KILLS * 4
    assert from_disk > 1000
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    # At most one unfinished file is left by the last life.
    assert len(list(disk.rglob("*.tmp"))) <= 1
    assert sum(path.stat().st_size for path in disk.rglob("*") if path.is_file()) <= (64 << 20) + (1 << 20)
