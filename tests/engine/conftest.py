"""Tiny models, built once for all tests of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.rig import Reference
from tests.tiny_model import Kind, build_tiny_model

# Shorter than the prompts of the tests. tiny_model gives the Gemmas a window of 64 by itself.
MISTRAL_WINDOW = 48


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    """The folder of the tiny model of a family."""
    built: dict[Kind, Path] = {}

    def folder(kind: Kind) -> Path:
        if kind not in built:
            built[kind] = build_tiny_model(tmp_path_factory.mktemp(kind), kind=kind)
            if kind == "mistral":
                config = built[kind] / "config.json"
                config.write_text(json.dumps(json.loads(config.read_text()) | {"sliding_window": MISTRAL_WINDOW}))
        return built[kind]

    return folder


@pytest.fixture(scope="session")
def llama(tiny: Callable[[Kind], Path]) -> Path:
    """The folder of the tiny llama."""
    return tiny("llama")


@pytest.fixture(scope="session")
def right(llama: Path) -> Iterator[Reference]:
    """The right greedy answer of the tiny llama to a prompt."""
    reference = Reference(llama)
    yield reference
    reference.close()
