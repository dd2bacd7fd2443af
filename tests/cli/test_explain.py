"""`longturn explain`, from files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from longturn.cli import app
from tests.explain.build import MORE, SYSTEM, TURNS, request

FIELDS = {"mechanism", "first_divergence", "lost_tokens", "append_only", "fix", "confidence"}


def files(folder: Path, *bodies: Any) -> list[str]:
    paths = [folder / f"{name}.json" for name in "AB"[: len(bodies)]]
    for path, body in zip(paths, bodies, strict=True):
        path.write_text(json.dumps(body))
    return [str(path) for path in paths]


def test_json_has_the_fields_of_the_contract(cli: CliRunner, tmp_path: Path) -> None:
    a = request("anthropic", system=SYSTEM + "It is 12:00:01.")
    b = request("anthropic", TURNS + MORE, system=SYSTEM + "It is 12:00:02.")
    done = cli.invoke(app, ["explain", *files(tmp_path, a, b), "--provider", "anthropic", "--json"])
    told = json.loads(done.output)
    assert set(told) >= FIELDS
    assert told["mechanism"] == "volatile_text"
    assert told["append_only"] is False
    assert set(told["first_divergence"]) == {"segment", "json_path", "offset", "before", "after"}
    assert told["first_divergence"]["json_path"] == "$.system[0].text"
    assert "12:00:02" in told["first_divergence"]["after"]


def test_the_order_of_keys_survives_reading(cli: CliRunner, tmp_path: Path) -> None:
    a, b = request("gemini"), request("gemini", TURNS + MORE)
    arguments = b["contents"][1]["parts"][1]["functionCall"]["args"]
    b["contents"][1]["parts"][1]["functionCall"]["args"] = dict(reversed(arguments.items()))
    wrapped = {"request": b, "time": "2026-11-30T10:00:00Z"}
    done = cli.invoke(app, ["explain", *files(tmp_path, a, wrapped), "--json"])
    told = json.loads(done.output)
    assert (told["mechanism"], told["provider"]) == ("key_order", "gemini")


def test_told_to_a_person(cli: CliRunner, tmp_path: Path) -> None:
    a = request("anthropic", system="Line one\nIt is 12:00:01.")
    b = request("anthropic", TURNS + MORE, system="Line one\nIt is 12:00:02.")
    done = cli.invoke(app, ["explain", *files(tmp_path, a, b)])
    assert done.exit_code == 0
    for piece in (
        "volatile_text",
        "system[0], $.system[0].text, byte 22",
        r"+ Line one\nIt is 12:00:02.",
        "To mend it",
    ):
        assert piece in done.output
    assert "Also in the later request: below_minimum" in done.output
    fine = cli.invoke(app, ["explain", *files(tmp_path, a, a)])
    assert fine.output.startswith("none")
    assert "To mend it" not in fine.output


def test_files_that_cannot_be_read_are_one_line(cli: CliRunner, tmp_path: Path) -> None:
    good, bad = files(tmp_path, request("openai"), [])
    missing = cli.invoke(app, ["explain", good, str(tmp_path / "none.json")])
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (1, True)
    no_object = cli.invoke(app, ["explain", good, bad])
    assert (no_object.exit_code, "JSON object" in no_object.stderr) == (1, True)
    Path(bad).write_text("{")
    assert "is not JSON" in cli.invoke(app, ["explain", good, bad]).stderr


def test_explaining_loads_nothing_heavy(tmp_path: Path) -> None:
    paths = files(tmp_path, request("openai"), request("openai"))
    code = (
        "import sys\nfrom longturn.cli import app\n"
        f"app(['explain', *{paths!r}, '--json'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'sqlalchemy', 'fastapi'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_conversation_of_many_requests(cli: CliRunner, tmp_path: Path) -> None:
    turns = [TURNS[: 2 * n + 1] for n in range(3)]
    bodies = [request("anthropic", some, system=f"{SYSTEM}It is 12:00:0{n // 2}.") for n, some in enumerate(turns)]
    paths = []
    for n, body in enumerate(bodies):
        paths.append(str(tmp_path / f"{n}.json"))
        Path(paths[-1]).write_text(json.dumps(body))
    told = json.loads(cli.invoke(app, ["explain", *paths, "--json"]).output)
    assert [step["mechanism"] for step in told["steps"]] == ["none", "volatile_text"]
    assert [(step["earlier"], step["later"]) for step in told["steps"]] == [(paths[0], paths[1]), (paths[1], paths[2])]
    assert told["lost_tokens"] == told["steps"][1]["lost_tokens"] > 0
    assert told["lost_usd"] == told["steps"][1]["lost_usd"] > 0
    assert set(told["steps"][0]) >= FIELDS
    shown = cli.invoke(app, ["explain", *paths]).output.splitlines()
    assert [line for line in shown if " -> " in line] == [f"{paths[0]} -> {paths[1]}", f"{paths[1]} -> {paths[2]}"]
    assert shown[-1].startswith(f"A cause was found in 1 of 2 steps: about {told['lost_tokens']:,} tokens")
    alone = cli.invoke(app, ["explain", paths[0]])
    assert (alone.exit_code, "at least two files" in alone.stderr) == (1, True)
