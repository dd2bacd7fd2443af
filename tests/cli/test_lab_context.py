"""`longturn lab context`, as scripts and people call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.conversation.policies.registry import CONTEXT_POLICIES
from tests.lab.context.recordings import Recording, part
from tests.lab.context.test_rates import recorded


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("trace"))


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["lab", "context", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: object) -> str:
    """The one line of an error."""
    result = run(*arguments, code=1)
    assert result.stdout == ""
    return str(result.stderr)


def test_all_policies_with_check_and_premises(trace: Path) -> None:
    found = json.loads(run(trace, "--json").stdout)
    assert {one["policy"] for one in found["policies"]} == {"recorded", *CONTEXT_POLICIES}
    assert [one["money"] for one in found["policies"]] == sorted(one["money"] for one in found["policies"])
    assert all(check["good"] for check in found["checks"])
    for one in found["policies"]:
        assert one["logical"] == sum(one["cached"].values()) + one["computed"]
        assert one["requests"] == found["calls"] == 120
    assert found["fitted"]["rates"]["characters_per_token"]["result"] == 2.0
    assert any("characters per token" in premise for premise in found["premises"])


def test_tables_for_people(trace: Path) -> None:
    shown = run(trace, "--policies", "none,slide", "--window", 40_000, "--output", 4_000).stdout
    assert "4 sessions, 120 calls" in shown
    assert "HELD OUT" in shown
    assert shown.count("good") == 2
    assert "furthest off: input of session s" in shown
    assert "- Window 40,000 tokens, usable 36,000" in shown
    assert "Entries live as the recorded client asked: 5 minutes." in shown


def test_an_option_of_a_policy_and_one_more(trace: Path) -> None:
    arguments = ("--policies", "clear-tools:trigger=25000,keep=2", "--policies", "none", "--no-check", "--json")
    found = json.loads(run(trace, *arguments).stdout)
    assert {one["policy"] for one in found["policies"]} == {"clear-tools:trigger=25000,keep=2", "none"}
    cleared = next(one for one in found["policies"] if one["policy"] != "none")
    assert cleared["epochs"] > 0
    assert found["checks"] == []
    assert any("Not checked" in premise for premise in found["premises"])


def test_an_engine_of_ones_own_has_no_prices(trace: Path) -> None:
    found = json.loads(run(trace, "--policies", "none", "--provider", "self", "--json").stdout)
    [one] = found["policies"]
    assert one["money"] is None
    assert set(one["cached"]) == {"device"}
    assert any("Own engine" in premise for premise in found["premises"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--provider", "acme"), "choose one of anthropic, openai, gemini, self"),
        (("--policies", "nothing"), "no context policy is called 'nothing'"),
        (("--policies", "none,none"), "given twice"),
        (("--ttl", "2h"), "choose one of recorded, 5m, 1h"),
        (("--window", 1000, "--output", 1000), "leaves no room"),
        (("--policies", "none", "--provider", "openai", "--model", "zork"), "name another with --model"),
    ],
)
def test_what_cannot_be_is_one_line(trace: Path, arguments: tuple[object, ...], said: str) -> None:
    line = " ".join(refused(trace, *arguments).split())
    assert said in line


def test_no_usage_no_check(tmp_path: Path) -> None:
    recording = Recording("s", "t")
    for session in (0, 1):
        recording.user(0, part("text", 10, "a"), session=session)
        recording.answer(1, "r", part("text", 10, "b"), session=session)
    path = recording.write(tmp_path)
    assert "--no-check" in refused(path)
    assert run(path, "--no-check", "--policies", "none").exit_code == 0


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"session": "s", "tokens": [1], "output": 1}\n')
    assert "structure" in refused(path)
