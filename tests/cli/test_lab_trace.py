"""`longturn lab trace` and `longturn lab generate`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from longturn.cli import app
from tests.lab.trace import files


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["lab", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_generated_trace_is_described(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    knobs = ["--sessions", "20", "--turns", "3", "--system-tokens", "100", "--retries", "0.1", "--seed", "4"]
    assert "of 20 sessions" in run("generate", "--out", str(path), *knobs)
    found = json.loads(run("trace", str(path), "--json"))
    assert (found["sessions"], found["unit"]) == (20, 1)
    assert found["sharing"]["largest"][0] == {"blocks": 100, "sessions": 20}
    shown = run("trace", str(path))
    assert f"{found['requests']:,} requests in 20 sessions" in shown
    assert f"{found['infinite']:.3f} of the blocks" in shown
    assert "answer, tokens" in shown
    assert "think time" in shown


def test_formats_can_be_forced_and_bad_lines_left_out(tmp_path: Path) -> None:
    path = files.write_lines(tmp_path / "trace", [files.HASHES, "nonsense", files.HASHES])
    assert "line 2" in run("trace", str(path), code=1)
    assert "requests, mooncake" in run("trace", str(path), "--format", "nonsense", code=1)
    shown = run("trace", str(path), "--skip-bad", "--format", "mooncake")
    assert "2 requests in" in shown
    assert "Left out as malformed: 1" in shown
    assert json.loads(run("trace", str(path), "--skip-bad", "--json", "--sample", "1"))["requests"] == 2


def test_sessions_without_a_clock_are_spread(tmp_path: Path) -> None:
    path = files.write_lines(tmp_path / "trace", [files.WEKA, files.WEKA | {"id": "other"}])
    at_once = json.loads(run("trace", str(path), "--json", "--span", "0"))
    spread = json.loads(run("trace", str(path), "--json", "--span", "2", "--seed", "1", "--shared-heads"))
    assert at_once["duration"] == 0 < spread["duration"] <= 7200


def test_impossible_knobs_are_refused(tmp_path: Path) -> None:
    assert "branching=2" in run("generate", "--out", str(tmp_path / "file"), "--branching", "2", code=1)
    assert not (tmp_path / "file").exists()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lab", "generate", "--out", str(tmp_path / "none" / "a.jsonl")])
    assert result.exit_code == 1
    assert "give a file in a folder that is there" in result.output
