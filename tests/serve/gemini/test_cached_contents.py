"""Google's cached contents act on the engine's real pages: they stay under pressure until they expire."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from google import genai
from google.genai import errors, types
from google.oauth2.credentials import Credentials

from longturn.engine import EngineService
from longturn.serve import create_app, in_background
from longturn.serve.keys import Keys
from tests.serve.conftest import tiny_options

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def small(tiny_folder: Path) -> Iterator[EngineService]:
    """An engine with room for little more than two prompts, and none below the device."""
    service = EngineService.start(tiny_options(tiny_folder, device_tokens=4096, host_bytes=0))
    yield service
    service.check_integrity()
    service.close()


@pytest.fixture(scope="module")
def small_url(small: EngineService) -> Iterator[str]:
    with in_background(create_app(small, Keys(["one", "two"])), small) as url:
        yield url


def google(url: str, version: str = "v1beta", key: str = "one") -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url, api_version=version))


@pytest.fixture(params=["v1", "v1beta"])
def client(request: pytest.FixtureRequest, small_url: str) -> Iterator[genai.Client]:
    client = google(small_url, request.param)
    yield client
    for cache in client.caches.list():
        client.caches.delete(name=cache.name)
    client.close()


def document() -> str:
    """About 1,200 tokens that no other test has sent."""
    return f"{next(NUMBERS)} is the number of this. " + "A page about the sea. " * 100


def keep(client: genai.Client, text: str, **more: object) -> types.CachedContent:
    config = {"contents": text, "system_instruction": "Read well", "ttl": "300s", **more}
    return client.caches.create(model="tiny", config=types.CreateCachedContentConfig(**config))


def ask(client: genai.Client, text: str = "What?", cache: types.CachedContent | None = None):
    config = types.GenerateContentConfig(
        max_output_tokens=3, temperature=0, cached_content=None if cache is None else cache.name
    )
    return client.models.generate_content(model="tiny", contents=text, config=config)


def press(client: genai.Client) -> None:
    """Send so much else that everything that is not pinned is evicted."""
    for _ in range(5):
        ask(client, document())


def test_a_cached_content_is_created_and_used(client: genai.Client):
    text = document()
    cache = keep(client, text, display_name="sea")
    assert cache.name.startswith("cachedContents/")
    assert (cache.model, cache.display_name) == ("models/tiny", "sea")
    assert 299 < (cache.expire_time - cache.create_time).total_seconds() < 301
    first, again = ask(client, "What?", cache), ask(client, "What?", cache)
    for answer in (first, again):
        usage = answer.usage_metadata
        assert usage.cached_content_token_count == cache.usage_metadata.total_token_count
        assert usage.prompt_token_count > usage.cached_content_token_count > 1024
    inline = client.models.generate_content(
        model="tiny",
        contents=[text, "What?"],
        config=types.GenerateContentConfig(max_output_tokens=3, temperature=0, system_instruction="Read well"),
    )
    assert inline.text == first.text
    assert inline.usage_metadata.prompt_token_count == first.usage_metadata.prompt_token_count


def test_a_stream_and_a_count_use_it_too(client: genai.Client, small_url: str):
    cache = keep(client, document())
    size = cache.usage_metadata.total_token_count
    config = types.GenerateContentConfig(max_output_tokens=3, cached_content=cache.name)
    for chunk in client.models.generate_content_stream(model="tiny", contents="And?", config=config):
        assert chunk.usage_metadata.cached_content_token_count == size
    request = {"contents": [{"parts": [{"text": "And?"}]}], "cachedContent": cache.name}
    counted = httpx.post(
        f"{small_url}/v1beta/models/tiny:countTokens?key=one", json={"generateContentRequest": request}
    ).json()
    assert counted["cachedContentTokenCount"] == size < counted["totalTokens"]


def test_its_pages_stay_while_others_go(client: genai.Client):
    kept, other = document(), document()
    cache = keep(client, kept)
    ask(client, other)
    press(client)
    assert ask(client, other).usage_metadata.cached_content_token_count == 0
    assert (
        ask(client, "What?", cache).usage_metadata.cached_content_token_count == cache.usage_metadata.total_token_count
    )


def found(small_url: str, text: str) -> int:
    """Tokens that the engine still has of a prompt that begins like the cached content of `text`."""
    body = {
        "contents": [{"parts": [{"text": text}, {"text": "What?"}]}],
        "systemInstruction": {"parts": [{"text": "Read well"}]},
        "generationConfig": {"maxOutputTokens": 1},
    }
    usage = httpx.post(f"{small_url}/v1/models/tiny:generateContent?key=one", json=body).json()["usageMetadata"]
    return sum(usage["longturn"]["cached"].values())


def test_a_deleted_one_can_be_evicted(client: genai.Client, small_url: str):
    text = document()
    cache = keep(client, text)
    client.caches.delete(name=cache.name)
    press(client)
    assert found(small_url, text) < 100
    with pytest.raises(errors.ClientError) as raised:
        ask(client, "What?", cache)
    assert (raised.value.code, raised.value.status) == (403, "PERMISSION_DENIED")


def test_its_life_begins_when_it_is_there(client: genai.Client):
    for life in ("5s", "300s"):
        cache = keep(client, document(), ttl=life)
        assert cache.expire_time is not None
        assert cache.create_time is not None
        told = (cache.expire_time - cache.create_time).total_seconds()
        assert told == pytest.approx(float(life[:-1]), abs=0.02)


def test_an_expired_one_can_be_evicted(client: genai.Client, small_url: str):
    text = document()
    cache = keep(client, text, ttl="0.5s")
    time.sleep(0.6)
    press(client)
    assert found(small_url, text) < 100
    with pytest.raises(errors.ClientError, match="expired"):
        client.caches.get(name=cache.name)
    assert list(client.caches.list()) == []


def test_a_longer_life_is_a_longer_pin(client: genai.Client):
    cache = keep(client, document(), ttl="0.5s")
    longer = client.caches.update(name=cache.name, config=types.UpdateCachedContentConfig(ttl="60s"))
    assert longer.expire_time > cache.expire_time
    time.sleep(0.6)
    press(client)
    assert (
        ask(client, "What?", cache).usage_metadata.cached_content_token_count == cache.usage_metadata.total_token_count
    )


def test_a_shorter_life_is_a_shorter_pin(client: genai.Client, small_url: str):
    text = document()
    cache = keep(client, text)
    client.caches.update(name=cache.name, config=types.UpdateCachedContentConfig(ttl="0.3s"))
    time.sleep(0.4)
    press(client)
    assert found(small_url, text) < 100


def test_one_that_goes_takes_no_pages_of_another(client: genai.Client):
    text = document()
    lasting, short, deleted = keep(client, text), keep(client, text, ttl="0.5s"), keep(client, text)
    client.caches.delete(name=deleted.name)
    time.sleep(0.6)
    press(client)
    assert short.name != lasting.name
    size = lasting.usage_metadata.total_token_count
    assert ask(client, "What?", lasting).usage_metadata.cached_content_token_count == size


def test_pages_that_were_lost_are_kept_again(client: genai.Client, small: EngineService):
    cache = keep(client, document())
    size = cache.usage_metadata.total_token_count
    small.clear_tier("device")
    assert ask(client, "What?", cache).usage_metadata.cached_content_token_count < size
    press(client)
    assert ask(client, "What?", cache).usage_metadata.cached_content_token_count == size


def test_all_are_listed_page_by_page(client: genai.Client, small_url: str):
    names = [keep(client, document()).name for _ in range(3)]
    assert [cache.name for cache in client.caches.list(config={"page_size": 2})] == names
    page = httpx.get(f"{small_url}/v1/cachedContents?pageSize=2&key=one").json()
    assert len(page["cachedContents"]) == 2
    assert page["nextPageToken"]
    assert "contents" not in page["cachedContents"][0]


def test_it_can_expire_at_a_time(client: genai.Client):
    when = datetime.now(UTC) + timedelta(hours=2)
    cache = keep(client, document(), ttl=None, expire_time=when)
    assert abs((cache.expire_time - when).total_seconds()) < 1
    unlimited = keep(client, document(), ttl=None)
    assert 3599 < (unlimited.expire_time - unlimited.create_time).total_seconds() < 3601


def test_functions_can_be_cached(client: genai.Client):
    function = types.FunctionDeclaration(name="weather", description="The weather. " * 90)
    cache = keep(
        client,
        document()[:300],
        tools=[types.Tool(function_declarations=[function])],
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY")),
    )
    config = types.GenerateContentConfig(max_output_tokens=200, temperature=0, cached_content=cache.name)
    answer = client.models.generate_content(model="tiny", contents="Rain?", config=config)
    assert [part.function_call.name for part in answer.candidates[0].content.parts if part.function_call] == ["weather"]


def test_other_clients_see_nothing_of_it(client: genai.Client, small_url: str):
    cache = keep(client, document())
    other = google(small_url, key="two")
    assert list(other.caches.list()) == []
    for call in (other.caches.get, other.caches.delete):
        with pytest.raises(errors.ClientError) as raised:
            call(name=cache.name)
        assert raised.value.code == 403
    with pytest.raises(errors.ClientError):
        ask(other, "What?", cache)


@pytest.mark.parametrize(
    "more",
    [
        {"systemInstruction": {"parts": [{"text": "x"}]}},
        {"tools": [{"functionDeclarations": [{"name": "f"}]}]},
        {"tool_config": {"functionCallingConfig": {"mode": "NONE"}}},
    ],
)
def test_what_belongs_into_the_cache_is_refused_beside_it(client: genai.Client, small_url: str, more: dict):
    cache = keep(client, document())
    body = {"contents": [{"parts": [{"text": "x"}]}], "cachedContent": cache.name, **more}
    response = httpx.post(f"{small_url}/v1/models/tiny:generateContent?key=one", json=body)
    assert response.status_code == 400
    assert "can not be used with GenerateContent request setting" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"contents": [{"parts": [{"text": "small"}]}]}, 400, "min_total_token_count=1024"),
        ({"model": "models/other"}, 404, "'tiny'"),
        ({"ttl": "5 minutes"}, 400, "300s"),
        ({"ttl": "0s"}, 400, "future"),
        ({"ttl": "999999999999s"}, 400, "too far"),
        ({"ttl": "5s", "expireTime": "2099-01-01T00:00:00Z"}, 400, "exclude"),
        ({"expireTime": "2001-01-01T00:00:00Z"}, 400, "future"),
        ({"expireTime": "soon"}, 400, "2027"),
        ({"contents": []}, 400, "contents is missing"),
        ({"contents": [{"parts": [{"text": "x " * 2000}]}]}, 400, "2048"),
    ],
)
def test_what_cannot_be_kept_is_refused(small_url: str, change: dict, status: int, said: str):
    body = {"model": "models/tiny", "contents": [{"parts": [{"text": document()}]}], **change}
    response = httpx.post(f"{small_url}/v1beta/cachedContents?key=one", json=body)
    assert response.status_code == status
    assert said in response.json()["error"]["message"]
    assert httpx.get(f"{small_url}/v1beta/cachedContents?key=one").json() == {"cachedContents": []}


def test_only_its_life_can_change(client: genai.Client, small_url: str):
    cache = keep(client, document())
    response = httpx.patch(f"{small_url}/v1beta/{cache.name}?key=one", json={"displayName": "x"})
    assert response.status_code == 400
    assert "ttl or expireTime" in response.json()["error"]["message"]


def test_vertex_speaks_of_projects(small_url: str):
    client = genai.Client(
        vertexai=True,
        project="p",
        location="l",
        credentials=Credentials(token="one"),
        http_options=types.HttpOptions(base_url=small_url),
    )
    cache = keep(client, document())
    assert cache.name.startswith("projects/p/locations/l/cachedContents/")
    answer = ask(client, "What?", cache)
    assert answer.usage_metadata.cached_content_token_count == cache.usage_metadata.total_token_count
    assert client.caches.get(name=cache.name).name == cache.name
    assert client.models.count_tokens(model="tiny", contents="x").total_tokens > 0
    client.caches.delete(name=cache.name)
