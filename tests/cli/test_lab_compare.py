"""`longturn lab compare`, as scripts and people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longturn.cache.policies.registry import POLICIES
from longturn.cli import app
from longturn.lab.trace import write_requests
from longturn.lab.trace.generate import Generated, Workload
from tests.cli.test_lab_replay import refused, run

TALKS = Generated(Workload(sessions=8, turns=3, system_tokens=40, user_tokens=30, output_tokens=12, think=2))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "[bold]talks.jsonl"
    write_requests(TALKS, path)
    return path


def test_all_policies_and_a_report(trace: Path, tmp_path: Path) -> None:
    """The least that can be asked of all."""
    html = tmp_path / "report.html"
    options = ("--device-share", 0.5, "--timed", 0, "--replicas", 0, "--workers", 2, "--html", html, "--json")
    found = json.loads(run("compare", trace, *options).stdout)
    assert {one["policy"] for one in found["runs"]} == set(POLICIES)
    assert found["failed"] == []
    assert len(found["device_sizes"]) == 1
    assert len(found["ranking"]["places"]) == 8
    assert "<h1>Cache policies on [bold]talks.jsonl</h1>" in html.read_text()


def test_for_people(trace: Path) -> None:
    two = ("--policy", "vllm-offload:block_size=8", "--policy", "longturn", "--policy", "none")
    shown = run("compare", trace, *two, "--timed", 0, "--replicas", 0, "--workers", 1).stdout
    assert f"[bold]talks.jsonl: {len(list(TALKS))} requests" in shown
    for word in ("Share cached, device alone", "Share cached, with host memory", "bound: optimum", "RANK", "Kendall"):
        assert word in shown
    assert "- times are modelled: Llama 3.1 8B on 1 x NVIDIA H100" in shown
    assert "failed:" not in shown


def test_a_run_that_fails_is_shown(trace: Path) -> None:
    two = ("--policy", "vllm:block_size=100000", "--policy", "none", "--device-share", 0.5)
    shown = run("compare", trace, *two, "--timed", 0, "--workers", 1).stdout
    assert "failed: vllm (device" in shown
    assert "less than a block of 100000" in " ".join(shown.split())
    assert "none  " in shown


def test_what_is_wrong_is_said_before_anything_runs(trace: Path, tmp_path: Path) -> None:
    compare = ("compare", trace)
    assert "no policy is called 'nope'" in refused(*compare, "--policy", "vllm", "--policy", "nope")
    assert "write a number" in refused(*compare, "--policy", "vllm:block_size=many")
    assert "policy vllm is given twice" in refused(*compare, "--policy", "vllm", "--policy", "vllm:block_size=8")
    assert "no model profile 'nope'" in refused(*compare, "--model", "nope")
    assert "no hardware profile 'nope'" in refused(*compare, "--hardware", "nope")
    assert "there is no folder" in refused(*compare, "--html", tmp_path / "none" / "report.html")
    assert "cannot be read" in refused("compare", tmp_path / "none.jsonl")
    assert "take a larger share" in refused(*compare, "--share", 0)
    for wrong in (("--share", 2), ("--device-share", -1), ("--host-ratio", -1), ("--workers", 0)):
        run(*compare, *wrong, code=2)


def test_a_bad_line_is_named_or_left_out(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(trace.read_text() + "{broken\n")
    n = len(list(TALKS))
    assert f"line {n + 1}" in refused("compare", path)
    options = ("--policy", "none", "--device-share", 0.5, "--timed", 0, "--workers", 1, "--json", "--skip-bad")
    assert json.loads(run("compare", path, *options).stdout)["requests"] == n


def test_progress_is_for_people_at_a_terminal(trace: Path) -> None:
    """Scripts that read stderr find nothing there."""
    options = ["--policy", "none", "--device-share", "0.5", "--timed", "0", "--workers", "1", "--json"]
    result = CliRunner().invoke(app, ["lab", "compare", str(trace), *options])
    assert (result.exit_code, result.stderr) == (0, "")
