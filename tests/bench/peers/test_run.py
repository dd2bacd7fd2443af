"""A whole run over processes that answer like engines."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import psutil
import pytest

import bench.peers.run
from bench.peers import page, report
from bench.peers.launch import LAUNCHES, Launch
from bench.peers.places import Places
from bench.peers.pools import Pools
from bench.peers.run import Run
from bench.peers.samples import CACHED, TTFT
from bench.peers.workloads import Workload, crowd, restart, table
from bench.peers.workloads.restart import READY

FAKE = Path(__file__).with_name("fake_engine.py")


def fake(places: Places, pools: Pools, port: int, scratch: Path) -> Launch:
    return Launch((sys.executable, str(FAKE), str(port)), {})


def broken(places: Places, pools: Pools, port: int, scratch: Path) -> Launch:
    return Launch((sys.executable, "-c", "raise SystemExit(3)"), {})


def absent(places: Places, pools: Pools, port: int, scratch: Path) -> Launch:
    return Launch((str(scratch / "no-such-program"),), {})


def living() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if str(FAKE) in one.cmdline()]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for name, launch in {"longturn": fake, "llamacpp": fake, "vllm": broken}.items():
        monkeypatch.setitem(LAUNCHES, name, launch)
    model = tmp_path / "model"
    model.mkdir()
    words = {f"Ġ{one}{other}a": i for i, (one, other) in enumerate((a, b) for a in "bcdfgh" for b in "aeiou")}
    model.joinpath("tokenizer.json").write_text(json.dumps({"model": {"vocab": words | {"x": 900}}}))
    return Places(tmp_path / "peers", model)


def a_run(places: Places, said: list[str], *workloads: str, minutes: float = 5, repeats: int = 2) -> Run:
    chosen: list[Workload] = [table(quick=True)[name] for name in workloads]
    return Run(places, list(LAUNCHES), chosen, repeats, 1, time.perf_counter() + minutes * 60, said.append)


def test_repeats_are_interleaved_and_a_peer_that_fails_is_left_out(places: Places, tmp_path: Path) -> None:
    said: list[str] = []
    run = a_run(places, said, "cold", "second")
    asyncio.run(run.all())
    order = [line.split()[0:4:3] for line in said if " repeat " in line]
    assert order == [
        [name, engine]
        for name in ("cold", "second")
        for engine in ("longturn", "llamacpp", "llamacpp", "longturn")  # each goes first in turn
    ]
    [trouble] = run.results.troubles
    assert "vllm" in trouble
    assert "status 3" in trouble
    assert living() == []

    rows = report.rows(run.results, run.workloads, None)
    cases = [(row.workload.name, row.case, row.metric) for row in rows]
    assert cases[:2] == [("cold", "128 tokens", TTFT), ("cold", "512 tokens", TTFT)]
    assert {row.figures["longturn"].median for row in rows if row.metric == CACHED} == {1.0}
    for row in rows:
        assert set(row.figures) == {"longturn", "llamacpp"}
        assert {one.repeats for one in row.figures.values()} == {2}
        assert row.over_peer == pytest.approx(row.figures["longturn"].median / row.figures["llamacpp"].median)

    page.write(tmp_path / "docs", rows, run.results, run.engines, "Today.")
    text = (tmp_path / "docs" / "peers.md").read_text()
    assert trouble in text
    assert {len(line.split("|")) for line in text.splitlines() if line.startswith("|")} == {10}
    assert {file.name for file in (tmp_path / "docs" / "peers").iterdir()} == {"cold.svg", "second.svg"}


def test_every_workload_runs(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LAUNCHES, "vllm")
    for module, name in ((bench.peers.run, "REST_S"), (restart, "SETTLE_S"), (crowd, "THINK_S")):
        monkeypatch.setattr(module, name, 0.0)
    names = list(table(quick=True))
    run = a_run(places, [], *names, repeats=1)
    asyncio.run(run.all())
    assert run.results.troubles == []
    assert {key[0] for key in run.results.values} == set(names)
    shares = {key: values for key, values in run.results.values.items() if key[2] == CACHED}
    warm = [share for key, values in shares.items() if key[0] != "restart" for share in values[0]]
    assert set(warm) == {1.0}
    # The fake one forgets everything when it is killed.
    assert {max(values[0]) for key, values in shares.items() if key[0] == "restart"} == {0.0}
    assert all(values[0][0] > 0 for key, values in run.results.values.items() if key[2] == READY)
    assert set(run.results.memory) == {(pools, engine) for pools in ("wide", "hosted", "tight") for engine in LAUNCHES}


def test_a_program_that_is_not_there_says_what_to_do(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAUNCHES, "vllm", absent)
    run = a_run(places, [], "cold", repeats=1)
    asyncio.run(run.all())
    [trouble] = run.results.troubles
    assert "--setup" in trouble


async def test_cancelling_keeps_what_was_measured_and_leaves_no_process(places: Places) -> None:
    said: list[str] = []
    run = a_run(places, said, "cold", repeats=50)
    task = asyncio.create_task(run.all())
    while not any("repeat 2" in line for line in said):
        await asyncio.sleep(0.05)
    assert len(living()) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert living() == []
    assert run.results.values


def test_the_time_of_a_run_is_kept(places: Places) -> None:
    run = a_run(places, [], "cold", repeats=50, minutes=0.1)
    began = time.perf_counter()
    asyncio.run(run.all())
    assert time.perf_counter() - began < 30
    assert run.results.cut
    assert living() == []
