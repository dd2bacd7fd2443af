"""One run of a comparison: what a serial replay is modelled to take, and what a clocked one has taken."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from longturn.engine.cost import CostModel, StepSpan, load_hardware_profile, load_model_profile
from longturn.errors import ConfigError
from longturn.lab.compare import Source
from longturn.lab.compare.job import Job, Outcome, run
from longturn.lab.replay import replay_hits
from longturn.lab.replay.load import Load
from longturn.lab.replay.timed import replay_timed
from longturn.lab.trace import write_requests
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.live.traces import Listed, request, written

COST = CostModel(load_model_profile("llama-3.1-8b"), load_hardware_profile("h100-sxm"))
TALKS = Generated(Workload(sessions=5, turns=4, system_tokens=50, user_tokens=40, output_tokens=20, think=2))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_requests(TALKS, path)
    return Source(path)


def job(source: Source, policy: str, device: int, host: int = 0, **more: object) -> Job:
    return Job("host", "label", policy, {}, device, host, source, **more)  # type: ignore[arg-type]


def test_a_serial_run_is_each_request_alone(source: Source) -> None:
    found = run(job(source, "sglang-hicache", 500, 2000), COST)
    replay = replay_hits(source.open(), "sglang-hicache", {}, 500, 2000)
    assert found.totals == replay.totals()
    assert found.totals["by_tier"].keys() == {"device", "host"}
    loading, prefill = [], []
    for one in replay.served:
        start = sum(one.cached.values())
        n_bytes = one.cached.get("host", 0) * COST.shape.token_bytes
        loading.append(COST.transfer_seconds("device-host", n_bytes) if n_bytes else 0.0)
        prefill.append(COST.step_seconds([StepSpan(one.logical - start, start, True)]) + COST.request_seconds)
    np.testing.assert_allclose(found.loading, loading)
    np.testing.assert_allclose(found.ttft, np.add(loading, prefill))
    assert found.loaded.tolist() == [one.cached.get("host", 0) for one in replay.served]
    assert found.computed.sum() == found.totals["computed"]
    assert found.device_seconds == pytest.approx(sum(prefill))
    assert found.transfer_bytes == {"device-host": found.totals["by_tier"]["host"] * COST.shape.token_bytes}
    assert found.cached_share == found.totals["cached"] / found.totals["logical"]
    assert found.cpu_seconds > 0


def test_what_lies_on_disk_comes_over_two_links(source: Source) -> None:
    options = {"storage": "unlimited", "prefetch_threshold": 1}
    found = run(Job("host", 1, "sglang-hicache", options, 400, 300, source), COST)
    tiers = found.totals["by_tier"]
    assert tiers["disk"] > 0
    assert found.transfer_bytes == {
        "device-host": (tiers["host"] + tiers["disk"]) * COST.shape.token_bytes,
        "host-disk": tiers["disk"] * COST.shape.token_bytes,
    }
    assert found.loaded.sum() == tiers["host"] + tiers["disk"]


def test_refused_requests_are_in_no_figure(tmp_path: Path) -> None:
    trace = Listed([request("a", range(100), [1]), request("b", range(1000, 2000), [1]), request("a", range(120), [1])])
    found = run(job(Source(written(trace, tmp_path)), "vllm", 256), COST)
    assert found.served.tolist() == [True, False, True]
    assert len(found.ttft) == len(found.computed) == len(found.loaded) == len(found.loading) == 2
    assert found.totals["rejected"] == 1
    for load in (None, Load(2)):
        nothing = run(job(Source(written(trace, tmp_path)), "vllm", 32, load=load), COST)
        assert nothing.served.tolist() == [False] * 3
        assert (len(nothing.ttft), nothing.cached_share, nothing.device_seconds) == (0, 0.0, 0.0)


def test_a_run_under_load_is_on_the_clock(source: Source) -> None:
    load = Load(4)
    found = run(job(source, "longturn", 600, 1000, load=load), COST)
    replay = replay_timed(source.open(), "longturn", {}, 600, 1000, COST, load)
    assert found.seconds == replay.seconds
    assert found.ttft.tolist() == [one.ttft for one in replay.served]
    assert found.totals == replay.totals()
    assert found.device_byte_seconds > 0
    assert found.host_byte_seconds == replay.host_byte_seconds > 0
    assert found.transfer_bytes == replay.transfer_bytes
    assert found.premises == replay.premises


def test_a_run_behind_a_router(source: Source) -> None:
    found = run(job(source, "vllm", 5000, router="sticky", replicas=3), COST)
    assert found.premises[-1] == "3 replicas behind a sticky router"
    assert 0 < found.totals["cached"] <= run(job(source, "vllm", 50_000), COST).totals["cached"]


def test_outcomes_travel_between_processes(source: Source) -> None:
    found = run(job(source, "vllm", 500), COST)
    again: Outcome = pickle.loads(pickle.dumps(found))
    assert again.job == found.job
    assert again.ttft.tolist() == found.ttft.tolist()


def test_what_cannot_run_says_so(source: Source) -> None:
    with pytest.raises(ConfigError, match="no policy"):
        run(job(source, "nope", 500), COST)
    with pytest.raises(ConfigError, match="cannot be read"):
        run(job(Source(Path("/nowhere/trace")), "vllm", 500), COST)
