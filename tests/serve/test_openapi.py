"""The server describes itself, and whatever its description allows is answered or refused, in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from longturn.engine import EngineService
from longturn.serve import create_app, in_background
from tests.serve.conftest import tiny_options
from tests.serve.fake_service import FakeService
from tests.tiny_model import build_tiny_model

SECONDS = 30.0
"""Longer than any answer of so small a model can take."""
BUDGET = 3.0
"""Seconds for the cases of one operation, of which there can be hundreds."""
BEGAN: dict[str, float] = {}


@pytest.fixture(scope="module")
def short_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose answers are short, because prompt and answer must fit in 128 tokens."""
    folder: Path = build_tiny_model(tmp_path_factory.mktemp("short"), context=128)
    service = EngineService.start(tiny_options(folder, device_tokens=1024))
    with in_background(create_app(service), service) as url:
        yield url
    service.check_integrity()
    service.close()


# Google's other addresses lead to the same functions.
schema = schemathesis.openapi.from_dict(create_app(FakeService()).openapi()).exclude(path_regex="v1beta|projects")


@schema.parametrize()
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_asked_is_answered_or_refused(case: schemathesis.Case, short_url: str):
    began = BEGAN.setdefault(case.operation.label, time.monotonic())
    if time.monotonic() - began < BUDGET:
        case.call_and_validate(base_url=short_url, checks=[not_a_server_error], timeout=SECONDS)


def test_every_route_says_what_it_takes(short_url: str):
    document = httpx.get(f"{short_url}/openapi.json").json()
    described = document["paths"]
    for path, operations in described.items():
        for method, operation in operations.items():
            assert ("requestBody" in operation) == (method in ("post", "patch")), path
    chat = described["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert chat == {"anyOf": [{"$ref": "#/components/schemas/ChatRequest"}]}
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == ["tiny"]
    assert "/v1beta/models/{model}:generateContent" in described
