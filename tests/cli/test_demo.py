"""`longturn demo`, with real servers and a tiny model: what it reports, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from longturn.cli.demo_report import Turn, summary, table, totals
from longturn.cli.demo_script import QUESTIONS, RESTART_AFTER
from longturn.ledger import RequestLine, TokenUse
from tests.tiny_model import build_tiny_model

DEMO = [sys.executable, "-c", "from longturn.cli import app; app(prog_name='longturn')", "demo"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Its tokens are hardly longer than bytes, so the notes take several thousand.
    return build_tiny_model(tmp_path_factory.mktemp("tiny"), context=16384)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary files go to a folder that can be looked at. Keys for servers of the user must not get in the way."""
    (tmp_path / "temporary").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "LONGTURN_API_KEYS": "secret"}


def left_behind(environment: dict[str, str]) -> list[Path]:
    return list(Path(environment["TMPDIR"]).glob("longturn-*"))


def test_report(tiny: Path, environment: dict[str, str]) -> None:
    run = subprocess.run(
        [*DEMO, "--model", str(tiny), "--json"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert list(report) == ["model", "turns", "without_cache", "totals"]
    turns, plain = report["turns"], report["without_cache"]
    assert len(turns) == len(plain) == len(QUESTIONS) >= 6
    for turn in (*turns, *plain):
        assert set(turn) == {"logical", "cached", "computed", "output", "ttft_ms", "after_restart"}
        assert set(turn["cached"]) == {"device", "host", "disk"}
        assert turn["logical"] == sum(turn["cached"].values()) + turn["computed"]
        assert turn["ttft_ms"] > 0
    assert [turn["logical"] for turn in turns] == [turn["logical"] for turn in plain]
    assert [turn["after_restart"] for turn in turns] == [n == RESTART_AFTER for n in range(len(turns))]
    assert turns[0]["computed"] == turns[0]["logical"] > 1500
    for turn in turns[1:]:
        tier = "disk" if turn["after_restart"] else "device"
        assert turn["cached"][tier] > 0.9 * turn["logical"]
    assert not any(sum(turn["cached"].values()) for turn in plain)
    assert report["totals"]["computed"] == sum(turn["computed"] for turn in turns)
    assert report["totals"]["computed_ratio"] > 3
    assert "SIGKILL" in run.stderr
    assert left_behind(environment) == []


def test_server_that_does_not_start(tiny: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "mute"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("token*"))
    run = subprocess.run([*DEMO, "--model", str(folder)], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert "no tokenizer can be loaded" in run.stderr
    assert "Traceback" not in run.stderr
    assert left_behind(environment) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tiny: Path, environment: dict[str, str], number: signal.Signals) -> None:
    run = subprocess.Popen(
        [*DEMO, "--model", str(tiny)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("turn 1"):
            break
    servers = psutil.Process(run.pid).children(recursive=True)
    assert servers
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert "Traceback" not in errors
    assert not any(server.is_running() for server in servers)
    assert left_behind(environment) == []


def turn(logical: int, tier: str, cached: int, *, ttft_ms: float, after_restart: bool = False) -> Turn:
    use = TokenUse(logical=logical, cached={tier: cached}, computed=logical - cached)
    return Turn("", RequestLine("id", None, "demo", 0.0, use, ttft_ms=ttft_ms), after_restart)


def test_table_fits_a_terminal() -> None:
    turns = [
        turn(12_000, "device", 0, ttft_ms=12_000),
        turn(12_100, "disk", 12_096, ttft_ms=200, after_restart=True),
    ]
    plain = [turn(12_000, "device", 0, ttft_ms=12_000), turn(12_100, "device", 0, ttft_ms=12_400)]
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(table(turns, plain), summary(turns, plain))
    text = capture.get()
    assert "12,096 disk" in text
    assert "restart" in text
    assert "…" not in text
    assert totals(turns, plain)["ttft_ratio"] == 2.0
    assert "24,100 without (2.0 times as many)" in " ".join(text.split())
