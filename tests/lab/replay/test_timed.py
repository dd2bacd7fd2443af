"""Replay on a virtual clock: the same hits as the serial one where nothing overlaps, and times that add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import msgspec
import pytest

from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import POLICIES, make_policy
from longturn.engine.cost import CostModel, Link, StepSpan, load_hardware_profile, load_model_profile
from longturn.errors import ConfigError
from longturn.lab.replay import Replay, replay_hits
from longturn.lab.replay.load import Load
from longturn.lab.replay.timed import replay_timed
from longturn.lab.trace import Trace
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.live.traces import Listed, chats, request

HARDWARE = load_hardware_profile("h100-sxm")
MODEL = load_model_profile("smollm2-135m")
COST = CostModel(MODEL, HARDWARE)
BUSY = Workload(6, 4, system_tokens=60, user_tokens=30, output_tokens=25, think=20, branching=0.2, retries=0.1)


def one_by_one(trace: Trace) -> Listed:
    """The same sessions, each whole before the next begins."""
    requests = sorted(trace, key=lambda one: int(one.session))
    return Listed(requests, trace.unit, notes=trace.notes)


def spaced(trace: Trace) -> Listed:
    """The same requests in their order, each long after the one before it has ended."""
    return Listed([replace(one, time=100.0 * place) for place, one in enumerate(trace)], trace.unit, notes=trace.notes)


def cached(replay: Replay) -> list[tuple[str, dict[str, int]]]:
    return [(one.id, dict(one.cached)) for one in replay.served]


def overlaps(policy: str) -> bool:
    return make_policy(policy, {}, Sizes(1000)).overlap


@pytest.mark.parametrize("host", [0, 700])
@pytest.mark.parametrize("policy", [name for name in POLICIES if not overlaps(name)])
def test_one_request_at_a_time_hits_as_the_serial_replay(policy: str, host: int) -> None:
    for trace, load in ((one_by_one(Generated(BUSY)), Load(1)), (spaced(Generated(BUSY)), Load())):
        serial = replay_hits(trace, policy, {}, 350, host)
        timed = replay_timed(trace, policy, {}, 350, host, COST, load)
        assert cached(timed) == cached(serial)
        assert timed.totals() == serial.totals()
        assert policy == "none" or timed.totals()["cached"] > 0
    assert not host or policy not in ("longturn", "trtllm", "vllm-offload") or timed.totals()["by_tier"]["host"] > 0


@pytest.mark.parametrize("load", [Load(), Load(1), Load(5), Load(3, think=0.0, max_running=2, chunk_tokens=64)])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_whatever_the_load(policy: str, load: Load) -> None:
    trace = Generated(BUSY)
    replay = replay_timed(trace, policy, {}, 450, 700, COST, load)
    assert [one.id for one in replay.served] == [one.id for one in trace]
    totals = replay.totals()
    assert totals["logical"] == totals["cached"] + totals["computed"]
    for one, asked in zip(replay.served, trace, strict=True):
        assert one.logical == asked.prompt_tokens
        if one.rejected:
            continue
        assert one.output == asked.output_tokens
        assert one.ttft is not None
        assert one.total is not None
        start = sum(one.cached.values())
        alone = COST.step_seconds([StepSpan(one.logical - start, start, True)])
        assert COST.request_seconds + alone <= one.ttft * (1 + 1e-9)
        assert one.ttft <= one.total <= replay.seconds


def test_the_same_run_gives_the_same_times() -> None:
    one, other = (replay_timed(Generated(BUSY), "longturn", {}, 600, 700, COST, Load(4)) for _ in range(2))
    # CPU seconds are measured, all else is modelled.
    assert one.served == other.served
    assert (one.seconds, one.host_byte_seconds, one.transfer_bytes) == (
        other.seconds,
        other.host_byte_seconds,
        other.transfer_bytes,
    )


def test_time_adds_up_without_a_cache() -> None:
    """Alone, a request takes its own overhead, its prompt in one step, and a step per further token."""
    trace = one_by_one(Generated(BUSY))
    replay = replay_timed(trace, "none", {}, 5000, 0, COST, Load(1))
    now = 0.0
    for _, turns in groupby(trace, key=lambda one: one.session):
        for place, one in enumerate(turns):
            n, m = one.prompt_tokens, one.output_tokens
            served = next(found for found in replay.served if found.id == one.id)
            prompt = COST.step_seconds([StepSpan(n, 0, True)])
            decode = sum(COST.step_seconds([StepSpan(1, n + done, False)]) for done in range(m - 1))
            assert served.ttft == pytest.approx(COST.request_seconds + prompt)
            assert served.total == pytest.approx(COST.request_seconds + prompt + decode)
            assert served.resources is not None
            assert served.resources.device_seconds == pytest.approx(prompt + decode)
            flops = COST.flops([StepSpan(n, 0, True), *(StepSpan(1, n + done, False) for done in range(m - 1))])
            assert served.resources.device_flops == pytest.approx(flops)
            now += served.total + (one.think or 0.0 if place else 0.0)
    assert replay.seconds == pytest.approx(now)


def test_long_prompts_are_computed_in_chunks() -> None:
    replay = replay_timed(Listed([request("a", range(1000))]), "none", {}, 5000, 0, COST, Load(1, chunk_tokens=300))
    chunks = [StepSpan(min(300, 1000 - start), start, True) for start in range(0, 1000, 300)]
    assert replay.served[0].ttft == pytest.approx(
        COST.request_seconds + sum(COST.step_seconds([chunk]) for chunk in chunks)
    )


def test_host_transfers_cost_their_time() -> None:
    """A slower link makes the same requests later by just the bytes over it, and nothing else changes."""
    trace = spaced(Generated(BUSY))
    slow = Link(1e9, 1e-3)
    hardware = msgspec.structs.replace(HARDWARE, links={**HARDWARE.links, "device-host": slow})
    fast_run, slow_run = (
        replay_timed(trace, "longturn", {}, 350, 700, cost, Load()) for cost in (COST, CostModel(MODEL, hardware))
    )
    assert cached(fast_run) == cached(slow_run)
    moved = slow_run.transfer_bytes
    assert moved == fast_run.transfer_bytes
    assert set(moved) == {"device-host"}
    loaded = [one.cached.get("host", 0) * COST.shape.token_bytes for one in slow_run.served]
    assert 0 < sum(loaded) < moved["device-host"]
    later = [slow_one.total - fast.total for slow_one, fast in zip(slow_run.served, fast_run.served, strict=True)]
    # All bytes go over the link while some request runs, what it loads before its first token.
    assert sum(later) >= (moved["device-host"] / slow.bandwidth) * 0.95
    for n_bytes, fast, slow_one in zip(loaded, fast_run.served, slow_run.served, strict=True):
        assert slow_one.ttft - fast.ttft >= n_bytes / slow.bandwidth * 0.95
    assert 0 < slow_run.host_byte_seconds <= 700 * COST.shape.token_bytes * slow_run.seconds


def test_concurrency_shortens_the_whole_and_lengthens_the_wait() -> None:
    trace = Generated(replace(BUSY, sessions=16, turns=6, think=0.0))
    replays = [replay_timed(trace, "longturn", {}, 20_000, 0, COST, Load(n)) for n in (1, 8)]
    alone, together = replays
    assert together.seconds < alone.seconds / 2
    assert together.times()["ttft_p50"] > alone.times()["ttft_p50"]
    assert set(alone.times()) == {"ttft_p50", "ttft_p95", "ttft_p99", "seconds"}
    assert alone.to_json()["times"] == alone.times()


def test_requests_that_do_not_fit_are_refused_and_their_sessions_go_on() -> None:
    trace = Listed(
        [request("a", range(50)), request("a", range(2000)), request("b", range(3000)), request("a", range(60))]
    )
    seen: list[int] = []
    replay = replay_timed(trace, "longturn", {}, 500, 0, COST, Load(2), progress=seen.append)
    assert [one.rejected for one in replay.served] == [False, True, True, False]
    assert [one.ttft is None for one in replay.served] == [False, True, True, False]
    assert [one.logical for one in replay.served] == [50, 2000, 3000, 60]
    assert seen == [1, 2, 3, 4]


def test_all_refused() -> None:
    replay = replay_timed(Listed([request("a", range(50))]), "vllm", {}, 32, 0, COST, Load(1))
    assert replay.to_json()["cached_tokens"] == ["rejected"]
    assert replay.times() == {}
    assert replay_timed(Listed([]), "vllm", {}, 32, 0, COST, Load()).totals()["logical"] == 0


def test_shorter_lengths_take_less_time() -> None:
    trace = Generated(replace(BUSY, think=0.0, unit=16, system_tokens=640))
    whole, tenth = (replay_timed(trace, "vllm", {}, 4000, 0, COST, Load(1, scale=scale)) for scale in (1, 8))
    assert tenth.seconds < whole.seconds / 2
    assert tenth.totals()["logical"] == pytest.approx(whole.totals()["logical"] / 8, rel=0.02)
    assert "all lengths are 1/8 of the trace's" in tenth.premises


def test_sharing_requests_wait_for_each_other() -> None:
    """Of eight first turns at once over a long common head, one computes the head and the others wait for it."""
    trace = chats(8, 1, system=1500, new=20)
    replay = replay_timed(trace, "longturn", {}, 50_000, 0, COST, Load(8))
    assert sum(sum(one.cached.values()) >= 1500 for one in replay.served) == 7


def test_premises_and_refusals() -> None:
    replay = replay_timed(chats(), "vllm", {}, 1000, 0, COST, Load(2))
    assert replay.premises[0] == "made up for a test"
    assert f"times are {COST.provenance}" in replay.premises
    assert any("Longturn's scheduler" in premise for premise in replay.premises)
    with pytest.raises(ConfigError):
        replay_timed(chats(), "nope", {}, 1000, 0, COST, Load())
    with pytest.raises(ConfigError, match="storage"):
        replay_timed(chats(), "sglang-hicache", {"storage": "unlimited"}, 1000, 500, COST, Load())
