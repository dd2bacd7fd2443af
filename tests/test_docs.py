"""The documentation says what is true: generated blocks are fresh, links lead somewhere, the example runs."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longturn.engine import EngineOptions, EngineService
from longturn.serve import create_app, in_background
from tests.tiny_model import build_tiny_model

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"<!-- executed by the tests -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_blocks_are_fresh(page: Path) -> None:
    command = [sys.executable, "docs/build.py", "--check", str(page)]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, f"run `make docs`\n{check.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_command_is_documented() -> None:
    from longturn.cli import app

    text = (ROOT / "docs" / "commands.md").read_text()
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        commands = group.typer_instance.registered_commands
        names += [f"{group.typer_instance.info.name} {c.name or c.callback.__name__}" for c in commands if c.callback]
    assert names
    assert [name for name in names if f"<!-- generated: help {name} -->" not in text] == []


def test_example_runs_as_it_stands(tmp_path: Path) -> None:
    [code] = EXAMPLE.findall((ROOT / "README.md").read_text())
    service = EngineService.start(EngineOptions(model=str(build_tiny_model(tmp_path)), served_name="demo"))
    try:
        with in_background(create_app(service), service) as url, contextlib.redirect_stdout(io.StringIO()) as printed:
            assert "http://127.0.0.1:8000" in code
            exec(code.replace("http://127.0.0.1:8000", url), {})
    finally:
        service.close()
    first, second = printed.getvalue().splitlines()
    assert " = {} + " in first
    assert "'device'" in second
