"""`longturn doctor`: it passes on a sound engine, and it notices one that is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longturn.cli import app
from longturn.engine.doctor import examine
from longturn.engine.runner import native
from longturn.engine.runner.native import Unavailable, find
from longturn.engine.runner.pool import KVPool
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def doctor(*options: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the checks by name."""
    result = CliRunner().invoke(app, ["doctor", "--json", *options])
    report = json.loads(result.stdout)
    assert set(report) == {"ok", "checks"}
    assert report["ok"] == (result.exit_code == 0) == all(check["ok"] for check in report["checks"])
    assert all(check["detail"] for check in report["checks"])
    return result.exit_code, {check["name"]: check for check in report["checks"]}


def test_sound_engine(tiny: Path) -> None:
    code, checks = doctor("--model", str(tiny))
    assert code == 0
    assert list(checks) == [
        *("python", "packages", "device", "kernels", "threads", "cache directory", "model", "memory"),
        *(f"{mode} hit from {tier}" for mode in ("default", "deterministic") for tier in ("device", "host", "disk")),
    ]
    for tier in ("device", "host", "disk"):
        default, exact = checks[f"default hit from {tier}"], checks[f"deterministic hit from {tier}"]
        assert (default["dtype"], exact["dtype"]) == ("float32", "bfloat16")
        assert default["different_answers"] == 0
        assert default["cached"] > 0.9 * default["logical"]
        assert exact["bit_identical"]
        assert exact["largest_logit_difference"] == 0
        assert exact["cached"] > 0


def test_only_deterministic_in_a_given_dtype(tiny: Path) -> None:
    code, checks = doctor("--model", str(tiny), "--deterministic", "--dtype", "float32")
    hits = [check for name, check in checks.items() if "hit" in name]
    assert code == 0
    assert [(hit["mode"], hit["dtype"]) for hit in hits] == [("deterministic", "float32")] * 3


def test_default_mode_in_16_bits(tiny: Path) -> None:
    code, checks = doctor("--model", str(tiny), "--dtype", "bfloat16")
    assert code == 0
    # Elsewhere rounding may differ, which is no failure.
    without_kernels = isinstance(find(16), Unavailable) and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert checks["default hit from device"]["bit_identical"] or without_kernels


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("devices", [["cpu"], ["cuda", "cpu"]])
def test_slow_kernels_are_named(monkeypatch: pytest.MonkeyPatch, devices: list[str], fast: bool) -> None:
    monkeypatch.setattr("longturn.engine.doctor._devices", lambda: devices)
    monkeypatch.setattr(native, "find", lambda dim: Unavailable("no C compiler"))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: fast)
    found = next(check for check in examine("there is none") if check.name == "kernels")
    assert found.ok
    assert "no C compiler" in found.detail
    assert ("serve with --dtype float32" in found.detail) is (devices == ["cpu"] and not fast)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrong_pages_are_noticed(tiny: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    sound = KVPool.write

    def write(self: KVPool, runs: Any, pages: Sequence[Any], skip: int) -> None:
        sound(self, runs, [np.roll(page, self.page_bytes // 2) for page in pages], skip)

    monkeypatch.setattr(KVPool, "write", write)
    code, checks = doctor("--model", str(tiny), "--dtype", dtype)
    assert code == 1
    failed = [name for name, check in checks.items() if not check["ok"]]
    assert failed == [f"{mode} hit from {tier}" for mode in ("default", "deterministic") for tier in ("host", "disk")]
    assert "please report" in checks["default hit from host"]["detail"]


def test_missing_model(tmp_path: Path) -> None:
    code, checks = doctor("--model", str(tmp_path / "nowhere"))
    assert code == 1
    assert list(checks)[-1] == "model"
    assert "no model" in checks["model"]["detail"]


def test_unknown_device_is_named_before_anything_runs(tiny: Path) -> None:
    code, checks = doctor("--model", str(tiny), "--device", "tpu")
    assert code == 1
    assert "--device cpu" in checks["device"]["detail"]
    assert not any("hit" in name for name in checks)


def test_cache_directory_that_cannot_be_written(tiny: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    code, checks = doctor("--model", str(tiny))
    assert code == 1
    assert "LONGTURN_CACHE" in checks["cache directory"]["detail"]


def test_for_people(tiny: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--model", str(tiny), "--deterministic"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 11
    assert all(line.startswith("ok   ") for line in lines)
    assert "bit-identical" in lines[-1]
