"""The program as a whole: help, version, errors, speed of its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longturn import __version__
from longturn.cli import app
from longturn.errors import ConfigError

LONGTURN = Path(sys.executable).with_name("longturn")


def test_help_names_the_commands(cli: CliRunner):
    result = cli.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in ("serve", "chat", "models"):
        assert name in result.output


def test_the_version(cli: CliRunner):
    assert cli.invoke(app, ["--version"]).output == f"longturn {__version__}\n"


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from longturn.cli import app; from typer.main import get_command; get_command(app);"
        "print([name for name in ('torch', 'transformers', 'fastapi', 'numpy', 'sqlalchemy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--model", "/no/such/folder"], "no model '/no/such/folder'"),
        (["serve", "--eviction", "random"], "no eviction order is called 'random'"),
        (["serve", "--page-size", "0"], "page_size is 0"),
        (["serve", "--port", "99999"], "port 99999 does not exist"),
        (["serve", "--api-key", ""], "an API key is empty"),
        (["serve", "--ledger", "/no/such/folder/book.db"], "cannot open the book"),
        (["chat", "--url", "http://127.0.0.1:9"], "cannot be reached"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(cli: CliRunner, arguments: list[str], message: str):
    result = cli.invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_an_error_shows_its_place_when_asked(cli: CliRunner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGTURN_DEBUG", "1")
    assert isinstance(cli.invoke(app, ["serve", "--page-size", "0"]).exception, ConfigError)


def test_ctrl_c_is_exit_code_130(cli: CliRunner, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("longturn.serve.listen", interrupt)
    assert cli.invoke(app, ["serve"]).exit_code == 130


def test_the_installed_program_starts():
    result = subprocess.run([LONGTURN, "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"longturn {__version__}\n")
