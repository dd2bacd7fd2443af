"""`longturn lab bound` and `longturn lab curve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longturn.cli import app


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations in turn, in blocks of 512 tokens; the last block of each prompt is full."""
    prompts = [[1, 2], [5, 6, 7], [1, 2, 3], [5, 6, 7, 8], [1, 2, 3, 4]]
    path = tmp_path / "small.jsonl"
    lines = [{"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids} for ids in prompts]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_bound_in_json(cli: CliRunner, trace: Path) -> None:
    result = cli.invoke(app, ["lab", "bound", str(trace), "--device-tokens", str(4 * 512 + 511), "--json"])
    assert json.loads(result.output) == {
        "infinite": pytest.approx(8 / 16),
        "optimum": pytest.approx(6 / 16),
        "lru": pytest.approx(2 / 16),
    }


def test_bound_for_people(cli: CliRunner, trace: Path) -> None:
    shown = " ".join(cli.invoke(app, ["lab", "bound", str(trace), "--device-tokens", "2048"]).output.split())
    assert "5 requests ask for 16 blocks of 512 tokens; 8 different blocks" in shown
    assert "LRU 0.125" in shown
    assert "optimum 0.375" in shown
    assert "infinite 0.500" in shown
    assert "4 blocks are 50.0% of all different ones. Between LRU and the optimum lie 0.250." in shown
    assert "Only prompts are cached" in shown
    assert "names no sessions" in shown


def test_bound_where_no_policy_matters(cli: CliRunner, trace: Path) -> None:
    shown = cli.invoke(app, ["lab", "bound", str(trace), "--device-tokens", str(512 * 100)]).output
    assert "No policy hits more than LRU at this size." in " ".join(shown.split())


def test_curve_in_json(cli: CliRunner, trace: Path) -> None:
    points = json.loads(cli.invoke(app, ["lab", "curve", str(trace), "--json"]).output)
    expected = [0, 0, 0, 2, 5, 7, 8]
    assert points == [[512 * n, pytest.approx(hits / 16)] for n, hits in enumerate(expected, start=1)]
    assert len(json.loads(cli.invoke(app, ["lab", "curve", str(trace), "--json", "--points", "3"]).output)) == 3


def test_curve_for_people(cli: CliRunner, trace: Path) -> None:
    shown = " ".join(cli.invoke(app, ["lab", "curve", str(trace)]).output.split())
    assert "2,560 62.50% 0.312" in shown
    assert "An infinite cache hits 0.500; more room than the last brings nothing." in shown


@pytest.mark.parametrize("command", [["curve"], ["bound", "--device-tokens", "2048"]])
def test_all_blocks_as_a_sample(cli: CliRunner, trace: Path, command: list[str]) -> None:
    name, *options = command
    whole = cli.invoke(app, ["lab", name, str(trace), *options, "--json"]).output
    assert whole == cli.invoke(app, ["lab", name, str(trace), *options, "--json", "--sample", "1"]).output
    shown = " ".join(cli.invoke(app, ["lab", name, str(trace), *options, "--sample", "1"]).output.split())
    assert "Estimated from 1 of the blocks, about 8 of them." in shown


@pytest.mark.parametrize("command", [["curve"], ["bound", "--device-tokens", "2048"]])
def test_bad_lines(cli: CliRunner, trace: Path, command: list[str]) -> None:
    name, *options = command
    good = cli.invoke(app, ["lab", name, str(trace), *options, "--json"]).output
    trace.write_text(trace.read_text() + "{broken\n")
    refused = cli.invoke(app, ["lab", name, str(trace), *options, "--json"])
    assert refused.exit_code == 1
    assert "line 6" in refused.stderr
    assert cli.invoke(app, ["lab", name, str(trace), *options, "--json", "--skip-bad"]).output == good


def test_answers(cli: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    lines = [{"id": 0, "tokens": [1, 2], "output": [3, 4]}, {"id": 1, "tokens": [1, 2, 3, 4, 5, 6], "output": []}]
    path.write_text("".join(json.dumps({"t": 0, "session": "s", **line}) + "\n" for line in lines))
    bound = ["lab", "bound", str(path), "--device-tokens", "100"]
    for answers, hits in ([], 2), (["--answers"], 4):
        ratios = json.loads(cli.invoke(app, [*bound, *answers, "--json"]).output)
        assert ratios == dict.fromkeys(("infinite", "optimum", "lru"), pytest.approx(hits / 8))
        points = json.loads(cli.invoke(app, ["lab", "curve", str(path), *answers, "--json"]).output)
        assert points[-1] == [hits, pytest.approx(hits / 8)]
    assert "answers as far as the trace tells them" in " ".join(cli.invoke(app, [*bound, "--answers"]).output.split())
