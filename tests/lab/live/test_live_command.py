"""`longturn lab live` as people and scripts run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from longturn.cli import app
from tests.lab.live.servers import SmallEngine
from tests.lab.live.traces import chats, written

WIDE = {"COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(chats(3, 3), tmp_path)


def run(*arguments: object, **env: str) -> Result:
    return CliRunner().invoke(app, ["lab", "live", *map(str, arguments)], env={**WIDE, **env})


def test_one_json_object(small: SmallEngine, url: str, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run(trace, "--url", url, "--json", "--out", out, "--policy", "longturn", "--device-tokens", 8192)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert json.loads(out.read_text()) == report
    assert report["totals"]["logical"] == report["totals"]["cached"] + report["totals"]["computed"]
    assert len(report["requests"]) == 9
    assert report["modelled"]["compared"] == 9
    assert set(tmp_path.iterdir()) == {trace, out}


def test_tables_for_people(small: SmallEngine, url: str, trace: Path) -> None:
    small.window = 100
    result = run(trace, "--url", url, "--policy", "longturn", "--device-tokens", 8192, "--scale", 1, "--seed", 1)
    assert result.exit_code == 1
    text = result.stdout
    assert f"vllm at {url}: 6 of 9 requests of trace.jsonl answered" in text
    assert "3 http 400" in text
    assert "#6 http 400: HTTP 400" in text
    # The last token of an answer is cached by the small engine, and by no real one.
    assert "3 of 6 requests exact; cached 275 measured, 272 modelled, drift -3" in text
    assert "vllm:prompt_tokens_total" in text
    assert "- modelled: the modelled cache begins empty" in text


def test_not_reported_is_a_dash(small: SmallEngine, url: str, trace: Path) -> None:
    small.reports = "never"
    result = run(trace, "--url", url, "--requests", 1)
    row = next(line.split() for line in result.stdout.splitlines() if line.split()[:2] == ["0", "s0"])
    assert row[2:5] == ["60", "-", "5"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--url", "http://example.com"], "--allow-remote"),
        (["--policy", "longturn"], "--policy needs --device-tokens"),
        (["--out", "/nonexistent/out.json"], "there is no folder /nonexistent"),
        (["--url", "http://127.0.0.1:9"], "no server answers"),
        (["--concurrency", "0"], "--concurrency is 0"),
        (["--engine", "nonesuch"], "no engine is called"),
    ],
)
def test_what_cannot_be_is_one_line(url: str, trace: Path, arguments: list[str], told: str) -> None:
    result = run(trace, "--url", url, *arguments)
    assert result.exit_code == 1
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_written_loses_no_report(url: str, trace: Path, tmp_path: Path) -> None:
    result = run(trace, "--url", url, "--json", "--out", tmp_path)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["totals"]["answered"] == 9
    assert "cannot be written (Is a directory)" in result.stderr


def test_missing_packages_are_named(trace: Path) -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; from longturn.cli import app; app()"
    program = [sys.executable, "-c", code, "lab", "live", str(trace)]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "pip install 'longturn[lab]'" in result.stderr


def test_the_key_comes_from_the_environment(small: SmallEngine, url: str, trace: Path) -> None:
    assert run(trace, "--url", url, "--requests", 1, LONGTURN_API_KEY="secret").exit_code == 0
    assert len(small.keys) >= 4
    assert set(small.keys) == {"Bearer secret"}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_reports_what_there_is(
    small: SmallEngine, url: str, trace: Path, ending: signal.Signals
) -> None:
    longturn = Path(sys.executable).with_name("longturn")
    program = [longturn, "lab", "live", trace, "--url", url, "--json"]
    small.slow = 0.05
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **WIDE}
    ) as process:
        until = time.monotonic() + 60
        while len(small.bodies) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        small.slow = 30.0
        while len(small.bodies) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(ending)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    report = json.loads(stdout)
    assert report["interrupted"]
    assert report["totals"]["outcomes"]["interrupted"] == 1
    assert report["totals"]["answered"] >= 3
    assert report["metrics"]["counted"]["logical"] >= report["totals"]["logical"]
    assert b"Traceback" not in stderr
