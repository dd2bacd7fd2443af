"""A hardware profile as a TOML file that `load_hardware_profile` reads again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from longturn.engine.cost import HardwareProfile
from longturn.errors import ConfigError


def write_profile(profile: HardwareProfile, path: Path) -> None:
    """Write `profile` to `path`, over what is there; its name is the file's from now on. Raises ConfigError."""
    data = {field: value for field, value in msgspec.to_builtins(profile).items() if field != "name"}
    text = "# Fitted by `longturn lab calibrate`.\n" + "\n".join(_table(data, "")) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the profile cannot be written to {path}: {error}. Name another file with --out") from error


def _table(data: Mapping[str, Any], path: str) -> Iterator[str]:
    """The lines of a table: its own values first, then the tables in it."""
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    for key, value in data.items():
        if value is not None and key not in tables:
            yield f"{key} = {_value(value)}"
    for key, value in tables.items():
        inner = f"{path}.{key}" if path else key
        yield from ("", f"[{inner}]")
        yield from _table(value, inner)


def _value(value: Any) -> str:
    # TOML takes numbers and strings as JSON writes them.
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        return "[\n" + "".join(f"    {_value(inner)},\n" for inner in value) + "]"
    return json.dumps(value)
