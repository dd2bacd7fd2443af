"""The load script, against a small server that fails on request."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

fastapi = pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load", Path(__file__).parents[2] / "bench" / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


load = script()


def common_prefix(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class FakeServer:
    """Keeps every prompt and reports the longest common prefix as cached. `fails`: prompt length to way of failing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[dict[str, Any]] = []
        self.fails: dict[int, str] = {}
        self.reports = True
        self.app = fastapi.FastAPI()
        self.app.add_api_route("/v1/completions", self.complete, methods=["POST"], response_model=None)

    async def complete(self, body: dict[str, Any] = fastapi.Body()) -> Any:  # noqa: B008
        prompt = body["prompt"]
        cached = max((common_prefix(prompt, earlier["prompt"]) for earlier in self.bodies), default=0)
        self.bodies.append(body)
        way = self.fails.get(len(prompt), "")
        if way == "status":
            return fastapi.responses.JSONResponse({"error": {"message": "queue full"}}, status_code=429)
        return fastapi.responses.StreamingResponse(self.events(body, cached, way), media_type="text/event-stream")

    async def events(self, body: dict[str, Any], cached: int, way: str) -> AsyncIterator[str]:
        def event(data: Any) -> str:
            return f"data: {json.dumps(data)}\n\n"

        await asyncio.sleep(30 if way == "hang" else (len(body["prompt"]) - cached) * 2e-4)
        if way == "event":
            yield event({"error": {"message": "out of pages"}})
        if way in ("event", "close"):
            return
        tokens = body["max_tokens"] - (way == "short")
        for _ in range(tokens):
            yield event({"choices": [{"text": "x", "finish_reason": None}]})
            await asyncio.sleep(1e-3)
        yield event({"choices": [{"text": "", "finish_reason": "length"}]})
        if self.reports:
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens, "longturn": {"host": cached}}
            yield event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}})
        yield "data: [DONE]\n\n"


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    # Protocol 0, the default, would keep asyncio from turning Nagle's algorithm off: 40 ms more for each first token.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        server = FakeServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        running = uvicorn.Server(uvicorn.Config(server.app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        while not running.started:
            time.sleep(0.01)
        yield server
        running.should_exit = True
        thread.join()


def drive(url: str, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out.json"
    status = load.main(["--base-url", url, "--model", "demo", "--repeats", "2", "--json", str(out), *arguments])
    return status, json.loads(out.read_text())


ROUNDS = ["rounds", "--conversations", "3", "--conversation-tokens", "100", "--rounds", "3", "--round-tokens", "10"]


def test_every_workload_against_a_perfect_cache(fake: FakeServer, tmp_path: Path) -> None:
    sizes = ["--cold-lengths", "100,400", "--warm-lengths", "1000", "--batches", "1,2", "--context", "20"]
    workloads = ["cold", "warm", "decode", *ROUNDS]
    status, out = drive(fake.url, tmp_path, *workloads, *sizes, "--output-tokens", "8", "--seed", "3")
    assert (status, out["errors"]) == (0, 0)
    assert len(out["requests"]) == len(fake.bodies) == 1 + 4 + 4 + 6 + 18

    body = fake.bodies[0]
    assert (body["ignore_eos"], body["temperature"], body["stream"]) == (True, 0, True)
    assert all(1000 <= token < 40000 for body in fake.bodies for token in body["prompt"])

    first, second = out["rows"]["cold"]
    assert (first["tokens"], first["cached_tokens"], first["requests"]) == (100, 0, 2)
    assert first["ttft_s"] >= 0.02
    assert second["ttft_s"] >= 0.08
    assert first["tokens_per_s"] == pytest.approx(100 / first["ttft_s"])

    (row,) = out["rows"]["warm"]
    assert row["cached_share"] == 1.0
    assert row["warm_ttft_s"] < row["cold_ttft_s"]
    assert row["warm_over_cold"] < 1
    assert {request["longturn"]["host"] for request in out["requests"] if request["labels"].get("turn") == 2} == {1000}

    shares = {row["round"]: row["cached_share"] for row in out["rows"]["rounds"]}
    assert shares == {"1": None, "2": 1.0, "3": 1.0, "2+": 1.0}

    assert [row["batch"] for row in out["rows"]["decode"]] == [1, 2]
    assert all(row["tokens_per_s"] > 0 for row in out["rows"]["decode"])
    assert all(0 < row["gap_p50_s"] <= row["gap_p99_s"] for row in out["rows"]["decode"])

    assert out["settings"]["seed"] == 3
    assert {"date", "cpus", "load_before", "load_after"} <= set(out)


def test_fill_and_probe_ask_for_the_same_prompts(fake: FakeServer, tmp_path: Path) -> None:
    arguments = ["warm", *ROUNDS, "--warm-lengths", "50", "--seed", "5"]
    _, filled = drive(fake.url, tmp_path, *arguments, "--phase", "fill")
    _, probed = drive(fake.url, tmp_path, *arguments, "--phase", "probe")
    assert filled["rows"]["warm"][0]["warm_ttft_s"] is None
    assert [row["round"] for row in filled["rows"]["rounds"]] == ["1"]
    (row,) = probed["rows"]["warm"]
    assert (row["cold_ttft_s"], row["cached_share"], row["warm_over_cold"]) == (None, 1.0, None)
    shares = {row["round"]: row["cached_share"] for row in probed["rows"]["rounds"]}
    assert shares == {"2": 1.0, "3": 1.0, "2+": 1.0}


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("status", "HTTP 429"),
        ("event", "out of pages"),
        ("close", "ended early, after 0 chunks"),
        ("hang", "timed out (--timeout 1 s) after 0 chunks"),
        ("short", "0 of 1 tokens"),
    ],
)
def test_a_failure_stays_with_its_request(
    fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, told: str
) -> None:
    fake.fails[30] = way
    status, out = drive(fake.url, tmp_path, "cold", "--cold-lengths", "20,30", "--timeout", "1")
    assert (status, out["errors"]) == (1, 2)
    good, bad = out["rows"]["cold"]
    assert (good["errors"], bad["errors"], bad["ttft_s"], bad["tokens_per_s"]) == (0, 2, None, None)
    assert [told in request["error"] for request in out["requests"] if request["error"]] == [True, True]
    assert told in capsys.readouterr().err


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    status, out = drive("http://127.0.0.1:9", tmp_path, "decode", "--batches", "2")
    assert (status, out["errors"], out["rows"]["decode"][0]["tokens_per_s"]) == (1, 5, None)
    assert "ConnectError" in out["requests"][0]["error"]


def test_the_time_limit_is_told(fake: FakeServer, tmp_path: Path) -> None:
    status, out = drive(fake.url, tmp_path, "cold", "--time-limit", "0.3", "--cold-lengths", "1000,1100")
    assert status == 1
    assert "--time-limit" in out["requests"][-1]["error"]
    assert len(out["requests"]) == 5


def test_an_interrupted_run_reports_what_it_has(fake: FakeServer) -> None:
    fake.fails[30] = "hang"
    args = load.parse(["--base-url", fake.url, "--model", "demo", "cold", "--cold-lengths", "20,30", "--repeats", "1"])

    async def interrupt() -> Any:
        running = asyncio.create_task(load.run(args))
        while not any(len(body["prompt"]) == 30 for body in fake.bodies):
            await asyncio.sleep(0.01)
        running.cancel()
        return await running

    out = asyncio.run(interrupt())
    assert out["interrupted"]
    assert [request["error"] for request in out["requests"]] == [None, None, "interrupted"]


def test_cached_tokens_that_are_not_reported(fake: FakeServer, tmp_path: Path) -> None:
    fake.reports = False
    _, out = drive(fake.url, tmp_path, "warm", "--warm-lengths", "20")
    assert out["rows"]["warm"][0]["cached_share"] is None


def test_a_phase_needs_a_seed_and_a_workload_with_turns(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["warm", "--phase", "fill"], ["cold", "--phase", "fill", "--seed", "1"]):
        with pytest.raises(SystemExit):
            load.parse(["--base-url", "http://x", "--model", "m", *arguments])
        assert "error: --phase" in capsys.readouterr().err


def reply(started: float, *arrivals: float, error: str | None = None, **more: Any) -> Any:
    return load.Reply(more.pop("labels", {}), 10, started, list(arrivals), error=error, **more)


def test_throughput_counts_from_the_first_token_of_the_last_stream() -> None:
    early, late = reply(0.0, 1.0, 2.0, 3.0, 4.0), reply(0.0, 2.0, 3.0, 4.0, 5.0)
    assert load.tokens_per_s([early, late]) == pytest.approx((2 + 3) / 3)
    assert load.tokens_per_s([reply(0.0, 1.0, 2.0, 3.0, output_tokens=6)]) == pytest.approx(4 / 2)
    assert load.tokens_per_s([early, reply(0.0, error="gone")]) is None
    assert load.tokens_per_s([reply(0.0, 1.0)]) is None


def test_ratios_pair_the_turns_of_one_repeat() -> None:
    def turn(number: int, repeat: int, ttft: float, **more: Any) -> Any:
        labels = {"history": 100, "turn": number, "repeat": repeat} | ({"reusable": 100} if number == 2 else {})
        return reply(5.0, 5.0 + ttft, labels=labels, **more)

    turns = [turn(1, 0, 1.0), turn(2, 0, 0.5, cached_tokens=64), turn(1, 1, 3.0), turn(2, 1, 0.3, cached_tokens=96)]
    turns += [turn(1, 2, 9.0), turn(2, 2, 9.0, error="gone")]
    (row,) = load.warm_rows(turns)
    assert row["warm_over_cold"] == pytest.approx((0.5 + 0.1) / 2)
    assert (row["cold_ttft_s"], row["warm_ttft_s"]) == (pytest.approx(3.0), pytest.approx(0.4))
    assert row["cached_share"] == pytest.approx(160 / 200)
    assert (row["requests"], row["errors"]) == (6, 1)


def test_percentiles() -> None:
    assert load.percentile([], 50) is None
    assert load.percentile([7.0], 95) == 7.0
    assert load.percentile([float(value) for value in range(101)], 95) == pytest.approx(95)
    assert load.percentile([1.0, 2.0], 50) == pytest.approx(1.5)
