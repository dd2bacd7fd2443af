"""API keys: who gets in, and that nobody profits from what another has sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from longturn.engine import EngineService
from longturn.errors import ConfigError, Refusal
from longturn.serve import Keys, create_app, in_background
from longturn.serve.wires import key_of

ROUTES = ["/v1/models", "/v1/models/tiny", "/metrics", "/v1/cache"]


@pytest.fixture(scope="module")
def closed(service: EngineService) -> Iterator[str]:
    with in_background(create_app(service, Keys(["alpha", "beta"])), service) as url:
        yield url


@pytest.mark.parametrize("path", ROUTES)
def test_routes_are_closed_without_a_key(closed: str, path: str):
    assert httpx.get(closed + path).status_code == 401
    assert httpx.get(closed + path, headers={"Authorization": "Bearer alpha"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_nothing_is_read_of_a_request_without_a_key(closed: str, path: str):
    answer = httpx.post(closed + path, content=b"not even JSON")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "invalid_api_key"
    for way in ("Authorization: Bearer KEY", "x-api-key: KEY", "x-goog-api-key: KEY"):
        assert way in answer.json()["error"]["message"]
    assert httpx.delete(f"{closed}/v1/cache/device").status_code == 401


def test_health_is_open(closed: str):
    assert httpx.get(f"{closed}/health").status_code == 200


def test_the_sdk_says_authentication_error(closed: str):
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=f"{closed}/v1", api_key="gamma", max_retries=0).models.list()


def cached(url: str, key: str, prompt: list[int], **more: object) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, **more}
    usage = httpx.post(f"{url}/v1/completions", json=body, headers=headers).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_each_key_has_a_cache_of_its_own(closed: str):
    prompt = [(1 + 7 * number) % 251 for number in range(200)]
    assert cached(closed, "alpha", prompt) == 0
    assert cached(closed, "alpha", prompt) == 199
    assert cached(closed, "beta", prompt) == 0


def test_a_clients_own_salt_divides_its_cache_further(closed: str):
    prompt = [(2 + 11 * number) % 251 for number in range(200)]
    assert cached(closed, "alpha", prompt, cache_salt="one") == 0
    assert cached(closed, "alpha", prompt, cache_salt="one") == 199
    assert cached(closed, "alpha", prompt, cache_salt="two") == 0
    assert cached(closed, "alpha", prompt) == 0


def test_keys_can_share_one_cache(service: EngineService):
    prompt = [(3 + 13 * number) % 251 for number in range(200)]
    with in_background(create_app(service, Keys(["alpha", "beta"], shared_cache=True)), service) as url:
        assert cached(url, "alpha", prompt) == 0
        assert cached(url, "beta", prompt) == 199


def scope(header: str | None, name: str = "authorization", query: str = "") -> dict[str, object]:
    headers = [] if header is None else [(name.encode(), header.encode("latin-1"))]
    return {"type": "http", "path": "/v1/models", "headers": headers, "query_string": query.encode()}


def test_salts_are_stable_and_not_the_keys():
    salt = Keys(["alpha"]).salt("alpha")
    assert salt == Keys(["beta", "alpha"]).salt("alpha")
    assert "alpha" not in salt
    assert Keys().salt(None) == ""


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "alpha", "Basic alpha", "Bearer alph", "Bearer älpha"]
)
def test_what_is_no_known_key_is_refused(header: str | None):
    with pytest.raises(Refusal) as caught:
        Keys(["alpha"]).salt(key_of(scope(header)))
    assert caught.value.status == 401


def test_each_providers_way_to_send_a_key_is_taken():
    assert key_of(scope("bearer  alpha ")) == "alpha"
    assert key_of(scope("alpha", "x-api-key")) == "alpha"
    assert key_of(scope("alpha", "x-goog-api-key")) == "alpha"
    assert key_of(scope(None, query="alt=sse&key=alpha")) == "alpha"


@pytest.mark.parametrize(
    ("headers", "shape"),
    [
        ({}, {"error": {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}),
        ({"anthropic-version": "2023-06-01"}, {"type": "error", "error": {"type": "authentication_error"}}),
        ({"x-goog-api-client": "genai"}, {"error": {"code": 401, "status": "UNAUTHENTICATED"}}),
    ],
)
def test_the_refusal_has_the_shape_of_the_clients_provider(closed: str, headers: dict[str, str], shape: dict[str, Any]):
    answer = httpx.get(f"{closed}/v1/models", headers=headers)
    body = answer.json()
    assert answer.status_code == 401
    assert shape.get("type") == body.get("type")
    assert shape["error"].items() <= body["error"].items()


def test_a_key_outside_latin_1_works(service: EngineService):
    with in_background(create_app(service, Keys(["ключ"])), service) as url:
        headers = {"Authorization": "Bearer ключ".encode()}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


def test_an_empty_key_is_a_mistake():
    with pytest.raises(ConfigError):
        Keys(["alpha", ""])
