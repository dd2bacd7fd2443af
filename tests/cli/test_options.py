"""Sizes, and the options that start an engine."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest
import typer

from longturn.cli.engine_options import DISK_BYTES, engine_options
from longturn.cli.sizes import parse_size
from longturn.engine import EngineOptions
from longturn.engine.build import CPU_CHUNK, OTHER_CHUNK


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("2g", 2 << 30),
        ("1.5K", 1536),
        (" 3 TB ", 3 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "3x", "GiB", "1,5G", "1e9"])
def test_what_is_no_size(text: str):
    with pytest.raises(typer.BadParameter):
        parse_size(text)


def test_without_options_the_engine_decides():
    assert engine_options() == EngineOptions()


def test_a_folder_alone_turns_the_disk_tier_on(tmp_path: Path):
    options = engine_options(disk_dir=tmp_path)
    assert (options.disk_dir, options.disk_bytes) == (tmp_path, DISK_BYTES)
    assert engine_options(disk_dir=tmp_path, disk_bytes=5).disk_bytes == 5


def test_a_size_alone_uses_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path))
    options = engine_options(disk_bytes=1 << 30)
    assert (options.disk_dir, options.disk_bytes) == (tmp_path / "kv", 1 << 30)
    assert engine_options(disk_bytes=0).disk_dir is None


def test_no_cache():
    assert engine_options(no_cache=True).cache is False


def test_every_engine_option_can_be_set_and_shows_its_true_default():
    names = {name for name in inspect.signature(engine_options).parameters if name != "no_cache"}
    assert names | {"cache"} == set(inspect.signature(EngineOptions).parameters)
    hints = get_type_hints(engine_options, localns={"EngineOptions": object}, include_extras=True)
    defaults = EngineOptions()
    for name in ("model", "device", "dtype", "max_running", "max_waiting", "page_size", "eviction"):
        assert hints[name].__metadata__[0].show_default == str(getattr(defaults, name))
    assert hints["chunk_tokens"].__metadata__[0].show_default == f"{CPU_CHUNK} on a CPU, else {OTHER_CHUNK}"
    assert hints["write_policy"].__metadata__[0].show_default == defaults.write_policy
    assert parse_size(hints["host_bytes"].__metadata__[0].show_default) == defaults.host_bytes
