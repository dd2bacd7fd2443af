"""From the name given to `--model` to a folder with the model, and the list of what is ready."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from longturn.engine.models import demo, gguf
from longturn.engine.models.fingerprint import fingerprint
from longturn.engine.models.once import PARTIAL, build_once
from longturn.errors import ModelError

Progress = Callable[[str], None]

_LAYOUT = "1"  # of the files that a conversion writes; raise it to convert again
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


class ModelSource(StrEnum):
    """The four kinds of name that `--model` accepts."""

    DEMO = "demo"
    GGUF = "gguf"
    FOLDER = "folder"
    HUB = "hub"


@dataclass(frozen=True)
class LocalModel:
    """A model that can be loaded: `path` is a folder with config.json, *.safetensors and (nearly always) a tokenizer.

    `fingerprint` names what the model computes (see `fingerprint.fingerprint`) and is part of every stored page's key.
    """

    name: str
    path: Path
    fingerprint: str


@dataclass(frozen=True)
class ListedModel:
    """One line of `longturn models`. `name` can be given to `--model`; `bytes` is the size on disk, 0 if not ready."""

    name: str
    source: ModelSource
    path: Path
    ready: bool
    bytes: int


def cache_directory() -> Path:
    """$LONGTURN_CACHE, else $XDG_CACHE_HOME/longturn, else ~/.cache/longturn. It need not exist."""
    if own := os.environ.get("LONGTURN_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "longturn"


def source_of(name: str) -> ModelSource:
    """Say what kind of name this is; an existing file or folder wins. Raises ModelError if it is none."""
    path = Path(name).expanduser()
    if name == "demo":
        return ModelSource.DEMO
    if path.is_dir():
        return ModelSource.FOLDER
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource.GGUF
    if path.suffix != ".gguf" and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return ModelSource.HUB
    raise ModelError(
        f"no model {name!r}: there is no such folder or .gguf file. Give --model a folder with config.json and "
        "*.safetensors, a GGUF file, a hub id such as org/name, or `demo`"
    )


def resolve(name: str, *, cache_dir: Path | None = None, progress: Progress | None = None) -> LocalModel:
    """Make the model called `name` ready on this machine and say where it lies.

    `name` is a model folder, a GGUF file (unpacked to bf16 in `cache_dir`, once), a hub id `org/name` (downloaded into
    the hub's own cache; only looked up there when HF_HUB_OFFLINE is set) or `demo`. `cache_dir` defaults to
    `cache_directory()`; `progress` hears one line per slow step. Safe to call from several processes at once. Raises
    ModelError that says what is missing and what to do.
    """
    progress = progress or (lambda _: None)
    folder = _folder(name, cache_dir or cache_directory(), progress)
    _check_folder(folder)
    try:
        return LocalModel(name=name, path=folder, fingerprint=fingerprint(folder))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the weights in {folder} cannot be read ({error}): copy or download them again") from error


def list_models(cache_dir: Path | None = None) -> list[ListedModel]:
    """The demo model, ready or not, then every unpacked GGUF file of the cache, by name. Changes nothing."""
    cache = cache_dir or cache_directory()
    path = _demo_folder(cache)
    listed = [ListedModel("demo", ModelSource.DEMO, path, path.is_dir(), _bytes(path))]
    for path in sorted((cache / "models" / "gguf").glob("*")):
        if path.is_dir() and not path.name.endswith(PARTIAL):
            listed.append(ListedModel(str(path), ModelSource.GGUF, path, True, _bytes(path)))
    return listed


def _folder(name: str, cache: Path, progress: Progress) -> Path:
    source = source_of(name)
    if source is ModelSource.HUB:
        return _from_hub(name, progress)
    if source is ModelSource.DEMO:
        return build_once(_demo_folder(cache), lambda target: demo.build(target, progress), progress)
    path = Path(name).expanduser().resolve()
    if source is ModelSource.FOLDER:
        return path
    return build_once(_gguf_folder(cache, path), lambda target: gguf.dequantise(path, target, progress), progress)


def _demo_folder(cache: Path) -> Path:
    return cache / "models" / demo.FOLDER


def _gguf_folder(cache: Path, file: Path) -> Path:
    # Size and time instead of the content: hashing a file of many gigabytes at every start would cost seconds.
    stat = file.stat()
    key = hashlib.sha256("\0".join([_LAYOUT, str(file), str(stat.st_size), str(stat.st_mtime_ns)]).encode())
    return cache / "models" / "gguf" / f"{file.stem}-{key.hexdigest()[:12]}"


def _check_folder(folder: Path) -> None:
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} is damaged: copy or download it again") from error
        missing += [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        hint = "; for a GGUF file give --model the file, not its folder" if any(folder.glob("*.gguf")) else ""
        raise ModelError(f"the model folder {folder} lacks {', '.join(missing)}: copy or download them{hint}")


def _from_hub(name: str, progress: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelError(f"a hub id needs the engine's packages ({error}): pip install 'longturn[engine]'") from error
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    if not offline:
        progress(f"fetching {name} from the model hub")
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=offline))
    except Exception as error:  # the hub's client passes on whatever its HTTP library raises
        why = (
            "HF_HUB_OFFLINE is set and it was not downloaded before" if offline else f"{type(error).__name__}: {error}"
        )
        raise ModelError(
            f"the model {name} could not be had from the hub ({why}). Check the name and the connection, give "
            "--model a folder with config.json and *.safetensors, or use `--model demo`"
        ) from error


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
