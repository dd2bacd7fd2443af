"""`longturn lab replay` and `longturn lab policies`, as scripts and people call them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from longturn.cache.policies.registry import POLICIES
from longturn.cli import app
from longturn.lab.trace import write_requests
from longturn.lab.trace.generate import Generated, Workload
from tests.lab.live.traces import Listed, request

TALKS = Generated(Workload(sessions=6, turns=3, system_tokens=40, user_tokens=30, output_tokens=12))
SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "talks.jsonl"
    write_requests(TALKS, path)
    return path


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["lab", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: object) -> str:
    """The one line of an error."""
    result = run(*arguments, code=1)
    assert result.stdout == ""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("mode", ["hits", "timed"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_object_that_scripts_read(trace: Path, policy: str, mode: str) -> None:
    arguments = ("replay", trace, "--policy", policy, "--device-tokens", 2000, "--host-tokens", 800, "--mode", mode)
    found = json.loads(run(*arguments, "--json").stdout)
    requests = list(TALKS)
    assert (found["trace"], found["policy"], found["mode"]) == ("talks.jsonl", policy, mode)
    assert (found["device_tokens"], found["host_tokens"]) == (2000, 800)
    assert isinstance(found["options"], dict)
    assert len(found["cached_tokens"]) == len(requests)
    for cached, one in zip(found["cached_tokens"], requests, strict=True):
        assert isinstance(cached, int)
        assert 0 <= cached < one.prompt_tokens
    totals = found["totals"]
    assert {key: type(value) for key, value in totals.items()} == {
        **dict.fromkeys(("logical", "cached", "computed", "output", "rejected"), int),
        "by_tier": dict,
    }
    assert totals["logical"] == sum(one.prompt_tokens for one in requests)
    assert totals["logical"] == totals["cached"] + totals["computed"]
    assert totals["cached"] == sum(totals["by_tier"].values())
    assert (found["times"] == {}) == (mode == "hits")
    assert found["premises"]


def test_options_reach_the_policy(trace: Path) -> None:
    base = ("replay", trace, "--device-tokens", 4000, "--json", "--policy")
    plain = json.loads(run(*base, "vllm").stdout)
    coarse = json.loads(run(*base, "vllm:block_size=64").stdout)
    assert (plain["options"], coarse["options"]) == ({"block_size": 16}, {"block_size": 64})
    assert plain["totals"]["cached"] > coarse["totals"]["cached"]
    assert all(cached % 64 == 0 for cached in coarse["cached_tokens"])
    both = json.loads(run(*base, "trtllm:tokens_per_block=8,partial_reuse=false").stdout)
    assert both["options"] == {"tokens_per_block": 8, "partial_reuse": False, "copy_on_partial_reuse": True}


def test_what_an_engine_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_requests(
        Listed([request("a", range(50), [1]), request("b", range(9000), [1]), request("a", range(60), [1])]), path
    )
    arguments = ("replay", path, "--device-tokens", 1024, "--policy", "vllm")
    for mode in ("hits", "timed"):
        found = json.loads(run(*arguments, "--mode", mode, "--json").stdout)
        assert found["cached_tokens"] == [0, "rejected", 48]
        assert found["totals"]["rejected"] == 1
        assert found["totals"]["logical"] == 110
        assert "1 requests do not fit and were refused" in run(*arguments, "--mode", mode).stdout


def test_without_a_host_tier(trace: Path) -> None:
    found = json.loads(run("replay", trace, "--device-tokens", 2000, "--json").stdout)
    assert (found["policy"], found["host_tokens"]) == ("longturn", None)


def test_for_people(trace: Path) -> None:
    shown = run("replay", trace, "--device-tokens", 300, "--host-tokens", 2000, "--policy", "sglang-hicache").stdout
    totals = json.loads(
        run(
            "replay", trace, "--device-tokens", 300, "--host-tokens", 2000, "--policy", "sglang-hicache", "--json"
        ).stdout
    )["totals"]
    assert f"logical {totals['logical']:,} = cached {totals['cached']:,} + computed {totals['computed']:,}" in shown
    assert f"device {totals['by_tier']['device']:,}, host {totals['by_tier']['host']:,};" in shown
    assert "- requests run strictly one after the other" in shown


def test_on_a_clock_for_people(trace: Path) -> None:
    shown = run("replay", trace, "--mode", "timed", "--concurrency", 3, "--think", 0, "--model", "llama-3.1-8b").stdout
    assert "time to first token, modelled: median" in shown
    assert "- 3 sessions at a time, no think times" in shown
    assert "- times are modelled: Llama 3.1 8B on 1 x NVIDIA H100" in shown


def test_computed_for_real(trace: Path, tiny_folder: Path) -> None:
    arguments = ("--mode", "real", "--model", tiny_folder, "--device-tokens", 600, "--concurrency", 2, "--think", 0)
    found = json.loads(run("replay", trace, *arguments, "--requests", 5, "--json").stdout)
    assert found["mode"] == "real"
    assert len(found["cached_tokens"]) == 5
    assert found["times"]["ttft_p50"] > 0
    assert "only the first 5 requests" in found["premises"]


def test_names_that_look_like_markup(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "[red]x.jsonl"
    path.write_bytes(trace.read_bytes())
    assert "[red]x.jsonl" in run("replay", path).stdout
    for command in ("bound", "curve"):
        more = ("--device-tokens", 500) if command == "bound" else ()
        assert "[red]x.jsonl" in run(command, path, *more).stdout


def test_what_is_wrong_is_one_line(trace: Path, tmp_path: Path) -> None:
    replay = ("replay", trace)
    assert "no policy is called 'nope': choose one of lightllm" in refused(*replay, "--policy", "nope")
    assert "its options are block_size" in refused(*replay, "--policy", "vllm:nope=1")
    assert "write a number" in refused(*replay, "--policy", "vllm:block_size=many")
    assert "give at least 1" in refused(*replay, "--policy", "vllm:block_size=0")
    assert "write NAME:key=value" in refused(*replay, "--policy", "vllm:block_size")
    assert "less than a block" in refused(*replay, "--policy", "vllm", "--device-tokens", 8)
    assert "no mode is called 'nope'" in refused(*replay, "--mode", "nope")
    assert "no trace format 'nope'" in refused(*replay, "--format", "nope")
    assert "no model profile 'nope'" in refused(*replay, "--mode", "timed", "--model", "nope")
    assert "no hardware profile 'nope'" in refused(*replay, "--mode", "timed", "--hardware", "nope")
    assert "cannot be read" in refused("replay", tmp_path / "none.jsonl")
    assert "storage" in refused(*replay, "--mode", "timed", "--policy", "sglang-hicache:storage=unlimited")
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in refused("replay", tmp_path / "empty.jsonl")


def test_a_bad_line_is_named_or_left_out(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    lines = trace.read_text().splitlines(keepends=True)
    path.write_bytes(gzip.compress("".join([*lines[:3], '{"id": 1}\n', *lines[3:]]).encode()))
    assert "line 4" in refused("replay", path, "--json")
    found = json.loads(run("replay", path, "--json", "--skip-bad").stdout)
    assert len(found["cached_tokens"]) == len(lines)


def test_policies_are_listed_with_their_options() -> None:
    found = json.loads(run("policies", "--json").stdout)
    assert list(found) == list(POLICIES)
    for policy in found.values():
        assert policy["models"]
        for option in policy["options"].values():
            assert set(option) == {"default", "help"}
            assert option["help"]
    assert found["vllm"]["options"]["block_size"]["default"] == 16
    shown = run("policies").stdout
    assert all(name in shown for name in POLICIES)
    assert "partial_reuse=true" in shown
    assert "cache_ram_tokens=none" in shown


def test_listed_defaults_can_be_given(trace: Path) -> None:
    """What the list shows as a default is what the command line takes, and changes nothing."""
    for name, policy in json.loads(run("policies", "--json").stdout).items():
        given = ",".join(f"{key}={_text(option['default'])}" for key, option in policy["options"].items())
        base = ("replay", trace, "--device-tokens", 2000, "--json", "--policy")
        assert run(*base, f"{name}:{given}").stdout == run(*base, name).stdout


def _text(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) or default is None else str(default)


def test_a_recorded_run_of_an_engine() -> None:
    """One of the reference runs, from outside as a script would do it."""
    golden = SHARED / "golden" / "vllm.chat.16384.block_size-16.json"
    workload = SHARED / "golden" / "chat.jsonl.gz"
    if not golden.exists():
        pytest.skip(f"the reference runs are not here ({golden})")
    expected = json.loads(golden.read_text())
    options = ",".join(f"{key}={value}" for key, value in expected["options"].items())
    found = json.loads(
        run(
            *("replay", workload, "--policy", f"{expected['policy']}:{options}", "--mode", "hits", "--json"),
            *("--device-tokens", expected["device_tokens"]),
        ).stdout
    )
    assert found["cached_tokens"] == expected["cached_tokens"]
