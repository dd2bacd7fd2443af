"""The whole comparison of two engines and a baseline on a small trace, in two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
from longturn.errors import ConfigError, TraceError
from longturn.lab.bounds import infinite, lru, optimum
from longturn.lab.compare import Comparison, Question, Source, compare
from longturn.lab.compare.compare import CONCURRENCY, THINK
from longturn.lab.compare.routing import ROUTERS
from longturn.lab.trace import write_requests
from longturn.lab.trace.generate import Generated, Workload
from longturn.lab.trace.reuse import reuse
from tests.lab.live.traces import Listed, request, written

COST = CostModel(load_model_profile("llama-3.1-8b"), load_hardware_profile("h100-sxm"))
TALKS = Generated(Workload(sessions=10, turns=3, system_tokens=40, user_tokens=30, output_tokens=12, think=2))
POLICIES = {"vllm-offload": {"block_size": 8}, "longturn": {}, "none": {}}
QUESTION = Question(POLICIES, shares=(0.3, 0.6, 1.0), timed_requests=15, replicas=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "talks.jsonl"
    write_requests(TALKS, path)
    return path


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, int]]:
    return []


@pytest.fixture(scope="module")
def found(path: Path, steps: list[tuple[int, int]]) -> Comparison:
    return compare(Source(path), QUESTION, COST, 2, lambda done, total: steps.append((done, total)))


def test_every_question_is_answered(found: Comparison) -> None:
    sizes = found.sizes
    assert len(sizes) == 3
    assert found.main == sizes[1]
    asked = {
        "device": [(policy, size) for policy in POLICIES for size in sizes],
        "host": [(policy, size) for policy in POLICIES for size in sizes],
        "sharing": [(policy, label) for policy in ("vllm-offload", "longturn") for label in ("as it is", "apart")],
        "routing": [(policy, router) for policy in ("vllm-offload", "longturn") for router in ROUTERS],
        "concurrency": [(policy, n) for policy in ("vllm-offload", "longturn") for n in CONCURRENCY],
        "think": [(policy, think) for policy in ("vllm-offload", "longturn") for think in THINK],
    }
    for question, expected in asked.items():
        assert [(one.job.policy, one.job.label) for one in found.of(question)] == expected
    assert found.failed == []
    assert len(found.outcomes) == sum(map(len, asked.values()))


def test_progress_reaches_its_end(found: Comparison, steps: list[tuple[int, int]]) -> None:
    total = len(found.outcomes)
    assert steps == [(done, total) for done in range(total + 1)]


def test_sizes_hold_the_longest_request(found: Comparison) -> None:
    longest = max(one.prompt_tokens + one.output_tokens for one in TALKS)
    assert found.sizes == sorted(set(found.sizes))
    assert found.sizes[0] >= 1.25 * longest
    assert found.sizes[-1] == found.different
    assert all(not one.totals["rejected"] for one in found.outcomes)


def test_sizes_are_whole_blocks_and_none_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    lines = [
        {"timestamp": n, "input_length": 500 * 3, "output_length": 5, "hash_ids": [0, n, n + 50]} for n in range(1, 20)
    ]
    path.write_text("".join(f"{msgspec.json.encode(line).decode()}\n" for line in lines))
    question = Question({"vllm": {}}, shares=(0.01, 0.05, 0.1, 0.12, 0.5), timed_requests=0, replicas=0)
    found = compare(Source(path), question, COST, 1)
    assert found.sizes == [4 * 512, 19 * 512]
    # Of 19 prompts of 1,500 tokens 18 find their first 512, and no bound says less than what a policy gets.
    best = 18 * 512 / (19 * 1500)
    assert found.bounds[19 * 512] == dict.fromkeys(("infinite", "optimum", "lru"), pytest.approx(best))
    assert found.curve[-1][1] == pytest.approx(best)
    assert found.of("device")[1].cached_share == pytest.approx(best)


def test_bounds_are_those_of_the_trace(found: Comparison) -> None:
    seen = reuse(TALKS, answers=True)
    assert found.different == seen.unique
    for size, bounds in found.bounds.items():
        assert bounds == {"infinite": infinite(seen), "optimum": optimum(seen, size), "lru": lru(seen, size)}
    assert [ratio for _, ratio in found.curve] == sorted(ratio for _, ratio in found.curve)
    assert found.curve[-1][1] == pytest.approx(infinite(seen))
    for one in found.of("device"):
        gap = found.gap(one)
        bounds = found.bounds[one.job.device_tokens]
        assert one.cached_share <= bounds["optimum"]
        if bounds["optimum"] - bounds["lru"] > 1e-9:
            assert gap is not None
            assert bounds["lru"] + gap * (bounds["optimum"] - bounds["lru"]) == pytest.approx(one.cached_share)


def test_host_memory_is_given_to_those_that_use_any(found: Comparison) -> None:
    for one in found.of("host"):
        assert one.job.host_tokens == (0 if one.job.policy == "none" else 2 * one.job.device_tokens)
    assert all(one.job.host_tokens == 0 for one in found.of("device"))
    for alone, with_host in zip(found.of("device"), found.of("host"), strict=True):
        assert alone.totals["cached"] <= with_host.totals["cached"]


def test_sharing_is_taken_away(found: Comparison) -> None:
    for policy in ("vllm-offload", "longturn"):
        shared, apart = (one for one in found.of("sharing") if one.job.policy == policy)
        # Nine of ten first turns have found the common head before.
        assert shared.totals["cached"] - apart.totals["cached"] >= 9 * 32


def test_some_requests_are_replayed_on_a_clock(found: Comparison) -> None:
    for one in (*found.of("concurrency"), *found.of("think")):
        assert 15 <= len(one.served) < found.requests
        assert one.seconds is not None
        assert one.seconds > 0
    fast, slow = (next(one for one in found.of("think") if one.job.label == think) for think in (0.0, 4.0))
    assert fast.seconds < slow.seconds


def test_it_ranks_the_engines(found: Comparison) -> None:
    assert found.ranking is not None
    assert {place.title for place in found.ranking.places} == {"vLLM", "Longturn"}


def test_json_is_complete(found: Comparison) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(found.to_json()))
    assert {"trace", "requests", "logical", "bounds", "curve", "runs", "failed", "ranking", "premises"} <= set(shown)
    assert (shown["trace"], shown["requests"], shown["failed"]) == ("talks.jsonl", len(list(TALKS)), [])
    assert len(shown["runs"]) == len(found.outcomes)
    assert {run["question"] for run in shown["runs"]} == {
        *("device", "host", "sharing", "routing", "concurrency", "think")
    }
    for run in shown["runs"]:
        assert run["totals"]["logical"] == run["totals"]["cached"] + run["totals"]["computed"]
        assert set(run["times"]) == {"ttft_p50", "ttft_p95", "ttft_p99"}
        assert set(run["resources"]) == {
            *("device_flops", "device_seconds", "device_byte_seconds"),
            *("host_byte_seconds", "transfer_bytes", "cpu_seconds"),
        }
    assert shown["ranking"]["places"][0]["rank"] == 1


def test_premises_name_the_model_and_the_reading(found: Comparison) -> None:
    assert found.premises[:2] == [
        f"times are {COST.provenance}",
        "host memory is 2 times the device's, for engines that use any",
    ]
    assert any("one after the other" in premise for premise in found.premises)
    assert not any("replicas" in premise or "shared nothing" in premise for premise in found.premises)


def test_the_same_again(path: Path, found: Comparison) -> None:
    question = replace(QUESTION, policies={"longturn": {}}, replicas=0)
    again = compare(Source(path), question, COST, 1)
    mine = [one for one in found.outcomes if one.job.policy == "longturn" and one.job.question != "routing"]
    assert [one.totals for one in again.outcomes] == [one.totals for one in mine]
    assert [one.ttft.tolist() for one in again.outcomes] == [one.ttft.tolist() for one in mine]
    assert again.ranking is None


def test_a_run_that_fails_is_named_and_the_others_stand(path: Path) -> None:
    policies = {"vllm": {"block_size": 100_000}, "none": {}}
    found = compare(Source(path), Question(policies, shares=(0.5,), timed_requests=0, replicas=0), COST, 2)
    assert len(found.failed) == 2
    assert found.failed[0].startswith(f"vllm (device {found.main}): ")
    assert "less than a block of 100000" in found.failed[0]
    assert [one.job.policy for one in found.outcomes] == ["none", "none"]
    assert found.ranking is None
    with pytest.raises(ConfigError, match=r"every run has failed, the first one as vllm \(device"):
        compare(Source(path), Question({"vllm": {"block_size": 100_000}}, timed_requests=0, replicas=0), COST, 1)


def test_nothing_to_compare(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="take a larger share"):
        compare(Source(path, share=0.0), QUESTION, COST, 1)
    bad = written(Listed([request("a", [1, 2], [3])]), tmp_path)
    bad.write_text(bad.read_text() + "{broken\n")
    with pytest.raises(TraceError, match="line 2"):
        compare(Source(bad), QUESTION, COST, 1)
    question = Question({"none": {}}, timed_requests=0, replicas=0)
    assert compare(Source(bad, skip_bad=True), question, COST, 1).requests == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are looked at in /proc")
@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["the terminal", "one process"])
def test_ctrl_c_ends_it_soon_and_quietly(tmp_path: Path, kill: Callable[[int, int], None]) -> None:
    """A terminal signals all processes. If it is only the one that waits, what has begun is finished and no more."""
    path = tmp_path / "long.jsonl"
    write_requests(Generated(Workload(sessions=25, turns=8, user_tokens=300, output_tokens=300)), path)
    program = [sys.executable, "-c", "from longturn.cli import app; app()"]
    command = [*program, "lab", "compare", str(path), "--share", "1", "--workers", "2"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and (len(_children(process.pid)) < 2 or any(map(_starts, _children(process.pid)))):
        time.sleep(0.1)
    workers = _children(process.pid)
    assert len(workers) >= 2
    # While it forks, Python loses signals.
    time.sleep(0.5)
    kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert (output, errors) == (b"", b"")
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _starts(pid: int) -> bool:
    """Whether it still has the handler of the process that it was forked from."""
    [caught] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGINT - 1)
