"""One tiny engine and one server for all tests that need no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from longturn.engine import EngineOptions, EngineService
from longturn.serve import create_app, in_background
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


def tiny_options(folder: Path, **changes: object) -> EngineOptions:
    settings = {"served_name": "tiny", "dtype": "float32", "device_tokens": 8192, "host_bytes": 1 << 24, "threads": 1}
    return EngineOptions(model=str(folder), **{**settings, **changes})


@pytest.fixture(scope="session")
def service(tiny_folder: Path) -> Iterator[EngineService]:
    service = EngineService.start(tiny_options(tiny_folder))
    yield service
    service.check_integrity()
    service.close()


@pytest.fixture(scope="session")
def url(service: EngineService) -> Iterator[str]:
    with in_background(create_app(service, body_limit=1 << 20), service) as url:
        yield url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as http:
        yield http


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
