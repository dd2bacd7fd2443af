"""`longturn models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longturn.cli import app


def test_models_as_a_table_and_as_json(cli: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path))
    assert "not fetched yet" in cli.invoke(app, ["models"]).output
    [demo] = json.loads(cli.invoke(app, ["models", "--json"]).output)
    assert (demo["name"], demo["source"], demo["ready"], demo["bytes"]) == ("demo", "demo", False, 0)
    assert demo["path"].startswith(str(tmp_path))
