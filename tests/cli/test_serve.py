"""`longturn serve` as a process: it comes up, answers, keeps its book and ends in order."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.errors import ConfigError
from longturn.ledger.book import Book
from longturn.serve import listen
from tests.cli.test_program import LONGTURN


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen, str]]:
    command = [LONGTURN, "serve", "--model", folder, "--served-name", "tiny", "--port", "0", "--device-tokens", "4096"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        url = None
        for line in process.stderr:
            if found := re.search(r"served at (\S+)/v1", line):
                url = found[1]
                break
        assert url, "the server did not come up"
        # Nobody reads on, so the pipe must not fill.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        for _ in range(100):
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.wait()


def test_it_serves_and_ends_in_order(tiny_folder: Path, tmp_path: Path):
    book = tmp_path / "book.db"
    options = ("--ledger", str(book), "--api-key", "alpha", "--disk-dir", str(tmp_path / "kv"), "--host-bytes", "8MiB")
    with served(tiny_folder, *options) as (process, url):
        headers = {"Authorization": "Bearer alpha"}
        body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 4}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 401
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers).json()
        tiers = httpx.get(f"{url}/v1/cache", headers=headers).json()["tiers"]
        assert [tier["name"] for tier in tiers] == ["device", "host", "disk"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    with Book(f"sqlite:///{book}") as kept:
        assert [line.to_dict() for line in kept.lines()] == [answer["usage"]["longturn"]]


def test_it_serves_with_the_policy_of_another_engine(tiny_folder: Path):
    options = ("--policy", "sglang-hicache:page_size=4", "--host-tokens", "2000")
    with served(tiny_folder, *options) as (_, url):
        body = {"model": "tiny", "prompt": "Once upon a time there was a lighthouse. " * 5, "max_tokens": 4}
        lines = [httpx.post(f"{url}/v1/completions", json=body).json()["usage"]["longturn"] for _ in range(2)]
        assert lines[0]["cached"] == {}
        assert lines[1]["cached"]["device"] % 4 == 0
        state = httpx.get(f"{url}/v1/cache").json()
        assert (state["policy"], [tier["name"] for tier in state["tiers"]]) == ("sglang-hicache", ["device", "host"])
        assert httpx.delete(f"{url}/v1/cache/device").json()["freed_tokens"] > 0
        assert httpx.delete(f"{url}/v1/cache/disk").status_code == 404
        again = httpx.post(f"{url}/v1/completions", json=body).json()["usage"]["longturn"]
        assert again["cached"] == {"host": lines[1]["cached"]["device"]}
        assert 'tier="host"' in httpx.get(f"{url}/metrics").text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "nope"], "no policy is called 'nope'"),
        (["--policy", "vllm:block_size=0"], "vllm:block_size is 0: give at least 1"),
        (["--policy", "vllm", "--page-size", "32"], "page_size is for the policy longturn"),
        (["--policy", "vllm", "--disk-bytes", "1GiB"], "disk_bytes is for the policy longturn"),
    ],
)
def test_a_policy_that_cannot_be_is_said_at_once(cli: CliRunner, options: list[str], message: str):
    result = cli.invoke(app, ["serve", "--model", "/nowhere", "--port", "0", *options])
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_an_address_in_use_is_said_before_anything_is_loaded(cli: CliRunner, tiny_folder: Path):
    with listen("127.0.0.1", 0) as sock:
        sock.listen()
        port = sock.getsockname()[1]
        result = cli.invoke(app, ["serve", "--model", str(tiny_folder), "--port", str(port)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: 127.0.0.1:{port} is in use by another program")


def test_an_open_server_that_others_can_reach_is_warned_about(
    cli: CliRunner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("longturn.engine.service.EngineService.start", stop_here)
    assert cli.invoke(app, ["serve", "--host", "0.0.0.0", "--port", "0"]).exit_code == 1
    assert "set --api-key" in caplog.text
    caplog.clear()
    for safe in (["--host", "0.0.0.0", "--api-key", "alpha"], []):
        cli.invoke(app, ["serve", "--port", "0", *safe])
    assert "set --api-key" not in caplog.text


def stop_here(*_: object) -> None:
    raise ConfigError("far enough")
