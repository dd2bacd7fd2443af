"""Health, metrics and the cache's picture."""

from __future__ import annotations

import httpx
import pytest
from openai import OpenAI
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from longturn.engine import EngineService
from longturn.errors import LongturnError
from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService


def samples(http: httpx.Client) -> dict[str, float]:
    text = http.get("/metrics").text
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_metrics_follow_the_ledgers_lines(http: httpx.Client, client: OpenAI):
    before = samples(http)
    prompt = [(17 * number) % 251 for number in range(100)]
    lines = [
        client.completions.create(
            model="tiny", prompt=prompt, max_tokens=5, temperature=0, extra_body={"ignore_eos": True}
        ).usage.longturn
        for _ in range(2)
    ]
    after = samples(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("longturn_logical_tokens_total") == 200
    assert grown("longturn_computed_tokens_total") == sum(line["computed"] for line in lines)
    assert grown("longturn_cached_tokens_total{device}") == sum(line["cached"].get("device", 0) for line in lines) >= 99
    assert grown("longturn_cache_hit_tokens_total{device}") >= 99
    assert grown("longturn_cache_stored_tokens_total{host}") >= 96
    assert grown("longturn_output_tokens_total") == 10
    assert grown("longturn_requests_total{length}") == 2
    assert grown("longturn_ttft_seconds_count") == 2
    assert grown("longturn_inter_token_seconds_count") == 8
    assert grown("longturn_engine_steps_total") > 0
    assert after["longturn_up"] == 1
    assert after["longturn_requests_running"] == after["longturn_requests_waiting"] == 0
    assert after["longturn_tier_capacity_tokens{device}"] == 8192
    assert 0 < after["longturn_tier_used_tokens{device}"] <= 8192


def test_counters_are_there_before_anything_happened(service: EngineService):
    with in_background(create_app(service), service) as url, httpx.Client(base_url=url) as http:
        found = samples(http)
    for name in ("cached", "cache_hit", "cache_evicted", "cache_stored"):
        assert found[f"longturn_{name}_tokens_total{{device}}"] == 0


def test_openmetrics_is_served_when_asked_for(http: httpx.Client):
    answer = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert any(family.name == "longturn_ttft_seconds" for family in parse_openmetrics(answer.text))


def test_the_cache_shows_lengths_and_a_tier_can_be_cleared(http: httpx.Client, client: OpenAI):
    prompt = [(19 * number) % 251 for number in range(150)]
    for _ in range(2):
        client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    picture = http.get("/v1/cache").json()
    assert [tier["name"] for tier in picture["tiers"]][:2] == ["device", "host"]
    assert set(picture["prefixes"][0]) == {"tokens", "hits", "in_use"}

    assert http.delete("/v1/cache/device").json()["freed_tokens"] >= 150
    assert http.get("/v1/cache").json()["tiers"][0]["used"] == 0
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    assert answer.usage.longturn["cached"] == {"host": 144}


def test_a_tier_that_is_not_there_is_not_found(http: httpx.Client):
    answer = http.delete("/v1/cache/attic")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "tier_not_found")


def test_health_follows_the_engine():
    fake = FakeService()
    with in_background(create_app(fake), fake) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "model": "tiny"}
        assert httpx.head(f"{url}/health").status_code == 200
        fake.alive, fake.error = False, RuntimeError("secret")
        down = httpx.get(f"{url}/health")
    assert down.status_code == 503
    assert "RuntimeError" in down.json()["reason"]
    assert "secret" not in down.text


def test_metrics_outlive_the_engine(monkeypatch: pytest.MonkeyPatch):
    fake = FakeService()
    app = create_app(fake)

    def stopped() -> None:
        raise LongturnError("the engine has stopped")

    monkeypatch.setattr(fake, "state", stopped)
    with in_background(app, fake) as url, httpx.Client(base_url=url) as http:
        assert samples(http)["longturn_up"] == 0
