"""Replay by the torch runner on a tiny model: the same requests, hits and refusals as the virtual clock says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from longturn.cache.policies.registry import POLICIES
from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
from longturn.errors import ConfigError
from longturn.lab.replay.load import Load
from longturn.lab.replay.real import replay_real
from longturn.lab.replay.timed import replay_timed
from longturn.lab.replay.tokens import TokenWriter
from longturn.lab.trace import Blocks, Trace
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.live.traces import Listed, request
from tests.tiny_model import VOCAB, build_tiny_model

COST = CostModel(load_model_profile("smollm2-135m"), load_hardware_profile("h100-sxm"))
BUSY = Workload(4, 3, system_tokens=40, user_tokens=30, output_tokens=6, think=0.0, branching=0.2, retries=0.1, seed=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny_model(tmp_path_factory.mktemp("tiny")))


def in_letters(trace: Trace) -> Listed:
    """The trace in so few token ids that a vocabulary of 300 holds them all: no two become equal by chance."""
    ids = np.arange(5000)
    prompt, _ = TokenWriter(1, VOCAB).request(request("a", ids.tolist()))
    letters = np.unique(prompt, return_index=True)[1]
    assert len(letters) > 100

    def spelt(blocks: Blocks | None) -> Blocks:
        assert blocks is not None
        return Blocks.of(letters[blocks.ids() % len(letters)])

    return Listed(
        [replace(one, prompt=spelt(one.prompt), output=spelt(one.output)) for one in trace], notes=trace.notes
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_hits_are_those_of_the_virtual_clock(policy: str, model: str) -> None:
    trace = in_letters(Generated(BUSY))
    real = replay_real(trace, policy, {}, 260, 400, Load(1), model)
    timed = replay_timed(trace, policy, {}, 260, 400, COST, Load(1))
    assert [(one.id, dict(one.cached)) for one in real.served] == [(one.id, dict(one.cached)) for one in timed.served]
    assert real.totals() == timed.totals()
    assert [one.id for one in real.served] == [one.id for one in trace]
    assert policy == "none" or real.totals()["cached"] > 0


def test_many_sessions_at_once(model: str) -> None:
    trace = Generated(replace(BUSY, sessions=8))
    seen: list[int] = []
    options = {"write_policy": "write_through", "page_size": "8"}
    replay = replay_real(trace, "longturn", options, 400, 400, Load(4, max_running=3), model, seen.append)
    assert [one.id for one in replay.served] == [one.id for one in trace]
    assert seen == list(range(1, len(replay.served) + 1))
    assert not any(one.rejected for one in replay.served)
    assert [one.output for one in replay.served] == [one.output_tokens for one in trace]
    assert replay.seconds is not None
    assert all(0 < one.ttft <= one.total <= replay.seconds for one in replay.served)
    assert replay.to_json()["options"]["page_size"] == 8
    assert replay.premises[-1].startswith("times are measured: ")


def test_recorded_arrivals_are_waited_for(model: str) -> None:
    trace = Listed([request("a", range(20), time=0.0), request("b", range(20), time=0.3)])
    replay = replay_real(trace, "vllm", {}, 400, 0, Load(), model)
    assert replay.seconds is not None
    assert 0.3 <= replay.seconds < 5


def test_a_prompt_longer_than_the_window_is_refused_and_fits_when_scaled(model: str) -> None:
    """The tiny model's window is 2048 tokens."""
    trace = Listed([request("a", range(3000)), request("a", range(100))])
    replay = replay_real(trace, "longturn", {}, 4000, 0, Load(1), model)
    assert [one.rejected for one in replay.served] == [True, False]
    replay = replay_real(trace, "longturn", {}, 4000, 0, Load(1, scale=4), model)
    assert [one.logical for one in replay.served] == [750, 25]


def test_what_cannot_be(model: str) -> None:
    trace = Listed([request("a", range(10))])
    with pytest.raises(ConfigError, match="no policy"):
        replay_real(trace, "nope", {}, 400, 0, Load(1), model)
    with pytest.raises(ConfigError, match="its options are"):
        replay_real(trace, "vllm", {"nope": "1"}, 400, 0, Load(1), model)
    with pytest.raises(ConfigError):
        replay_real(trace, "vllm", {}, 400, 0, Load(1), model + "/nowhere")
