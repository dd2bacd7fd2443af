"""Calibration of a tiny model by the real engine, from the command line to a profile that is found by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.engine import EngineOptions
from longturn.engine.build import Built, build
from longturn.engine.cost import CostModel, StepSpan, list_profiles, load_hardware_profile
from longturn.engine.cost.config import profile_of_folder
from longturn.engine.runner.torch_runner import TorchRunner
from longturn.errors import ConfigError
from longturn.lab.calibrate import write_profile
from longturn.lab.calibrate.timing import TRANSFER_PAGES, time_step, time_transfers
from longturn.lab.calibrate.workload import CONCURRENCY, run_conversations, typical
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def built(tiny: Path) -> Iterator[Built]:
    built = build(EngineOptions(model=str(tiny), threads=1, device_tokens=12_000, host_bytes=0))
    yield built
    built.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_command_writes_a_profile_and_says_how_good_it_is(tiny: Path, cache: Path) -> None:
    result = CliRunner().invoke(app, ["lab", "calibrate", "--model", str(tiny), "--quick", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert Path(report["file"]) == cache / "profiles" / "local.toml"
    assert "local" in list_profiles()["hardware"]
    hardware = load_hardware_profile("local")
    calibration = hardware.calibration
    assert calibration is not None
    assert calibration.model == tiny.name
    every = report["held_out_errors"]["all"]
    assert (calibration.held_out, calibration.median_error) == (every["steps"], every["median"])
    assert sum(of["steps"] for kind, of in report["held_out_errors"].items() if kind != "all") == every["steps"] > 10
    assert 0 < every["median"] <= every["p95"]
    assert (calibration.median_error > 0.15) == any("do not trust" in warning for warning in report["warnings"])
    cost = CostModel(profile_of_folder(tiny), hardware)
    assert cost.calibrated
    assert cost.provenance == report["provenance"]
    assert f"fitted to {tiny.name}" in cost.provenance
    # Not a test of speed: a step of 2,000 tokens takes longer than one of 1, and neither takes a minute.
    short, long = (cost.step_seconds([StepSpan(n, 0, True)]) for n in (1, 2000))
    assert 0 < short < long < 60
    assert cost.transfer_seconds("device-host", 1 << 30) > 0


def test_table_names_file_and_error(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    result = CliRunner().invoke(app, ["lab", "calibrate", "--model", str(tiny), "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "MEDIAN ERROR" in said
    assert "modelled:" in said
    assert load_hardware_profile(out).name == "mine"
    with pytest.raises(ConfigError, match="cannot be written"):
        write_profile(load_hardware_profile(out), out / "below")


def test_conversations_are_recorded_step_by_step(built: Built) -> None:
    engine = built.engine
    engine.cache.clear("device")
    before, runner = engine.counters.tokens, engine.runner
    steps = run_conversations(engine, turns=3, seed=1)
    assert engine.runner is runner
    computed = sum(span.n * span.part for stepped in steps for span in stepped.step)
    assert computed == pytest.approx(engine.counters.tokens - before)
    assert sum(stepped.begun for stepped in steps) == sum(stepped.ended for stepped in steps) == 3 * CONCURRENCY
    assert max(len(stepped.step) for stepped in steps) == CONCURRENCY
    # Later turns start behind the history, which is not computed again.
    assert any(span.prompt and span.start > 0 and span.n > 1 for stepped in steps for span in stepped.step)
    assert all(stepped.model_seconds > 0 and stepped.own_seconds > 0 for stepped in steps)
    engine.cache.clear("device")
    again = run_conversations(engine, turns=3, seed=1)
    # Which of two prompts of nearly the same length goes first, is a matter of microseconds.
    first, second = (sorted((span.n, span.start) for span in run[0].step) for run in (steps, again))
    assert first == second


def test_like_steps_become_one_with_the_median(built: Built) -> None:
    steps = run_conversations(built.engine, turns=2, seed=3)
    merged = typical([steps, steps, steps])
    kinds = {(stepped.step, stepped.begun, stepped.ended) for stepped in steps}
    assert len(merged) == len(kinds)
    assert {stepped.model_seconds for stepped in merged if _count(steps, stepped.step) == 1} <= {
        stepped.model_seconds for stepped in steps
    }


def test_a_step_by_itself_is_timed(built: Built) -> None:
    assert isinstance(built.engine.runner, TorchRunner)
    rng = np.random.default_rng(0)
    step = (StepSpan(300, 900, True), StepSpan(1, 50, False), StepSpan(1, 1, False))
    assert 0 < time_step(built.engine.runner, step, rng) < 60


def test_transfers_are_timed_over_each_link(built: Built, tmp_path: Path) -> None:
    assert isinstance(built.engine.runner, TorchRunner)
    taken = time_transfers(built.engine.runner, tmp_path / "pages", rounds=2)
    page_bytes = built.engine.runner.pool.page_bytes
    sizes = sorted(n * page_bytes for n in TRANSFER_PAGES)
    assert sorted(n_bytes for n_bytes, _ in taken["host-disk"]) == sorted(sizes * 2)
    assert sorted(n_bytes for n_bytes, _ in taken["device-host"]) == sorted(sizes * 4)
    assert all(seconds > 0 for moves in taken.values() for _, seconds in moves)


def _count(steps: list, step: tuple) -> int:  # type: ignore[type-arg]
    return sum(stepped.step == step for stepped in steps)
