"""Profiles by name or path: those of the package, and those of this machine."""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import msgspec

from longturn.engine.cost.config import profile_of_folder
from longturn.engine.cost.hardware_profile import HardwareProfile
from longturn.engine.cost.model_profile import ModelProfile
from longturn.engine.models import cache_directory
from longturn.errors import ConfigError

Profile = TypeVar("Profile", ModelProfile, HardwareProfile)


def profile_directory() -> Path:
    """Where this machine's own hardware profiles lie: `profiles` in the cache of models. It need not exist."""
    return cache_directory() / "profiles"


def load_model_profile(name_or_path: str | Path) -> ModelProfile:
    """Load a model profile by name, from a .toml file, or from a model's folder by its config.json.

    Raises ConfigError that lists the names or names the bad field.
    """
    if (folder := Path(name_or_path).expanduser()).joinpath("config.json").is_file():
        return profile_of_folder(folder)
    return _load(ModelProfile, "model", name_or_path, _packaged("models"))


def load_hardware_profile(name_or_path: str | Path) -> HardwareProfile:
    """Load a hardware profile by name or from a .toml file. `local` is what `longturn lab calibrate` wrote here.

    Raises ConfigError in the same way.
    """
    return _load(HardwareProfile, "hardware", name_or_path, _packaged("hardware") | _own())


def list_profiles() -> dict[str, list[str]]:
    """Names of profiles by kind, "models" and "hardware"."""
    return {"models": sorted(_packaged("models")), "hardware": sorted(_packaged("hardware") | _own())}


def _packaged(kind: str) -> dict[str, Traversable]:
    folder = resources.files("longturn.engine.cost") / "profiles" / kind
    return {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}


def _own() -> dict[str, Traversable]:
    return {path.stem: path for path in profile_directory().glob("*.toml")}


def _load(kind: type[Profile], what: str, name_or_path: str | Path, known: dict[str, Traversable]) -> Profile:
    name = str(name_or_path)
    file: Traversable | None = known.get(name)
    if file is None and name.endswith(".toml"):
        file = Path(name).expanduser()
    if file is None or not file.is_file():
        more = {
            "model": "a .toml file or a model's folder",
            "hardware": "a .toml file; `longturn lab calibrate` makes `local` for this machine",
        }
        raise ConfigError(f"no {what} profile {name!r}: choose one of {', '.join(sorted(known))}, or give {more[what]}")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return msgspec.convert({"name": file.name.removesuffix(".toml")} | data, kind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the {what} profile {file} is not TOML: {error}. Mend or remove it") from error
    except OSError as error:
        raise ConfigError(f"the {what} profile {file} cannot be read: {error}. Mend or remove it") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"the {what} profile {file} is malformed: {error}. Mend or remove it") from error
