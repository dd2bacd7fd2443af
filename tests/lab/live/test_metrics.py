"""Counters as Prometheus' own library writes and reads them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from longturn.dialects.engine_counters import growth, parse, total
from longturn.dialects.engines import ENGINES
from longturn.lab.live.metrics import read
from longturn.lab.wire import client
from tests.lab.live.servers import SmallEngine


def test_series_that_differ_only_in_whose_they_are_are_added_up() -> None:
    registry = CollectorRegistry()
    cached = Counter("sglang:cached_tokens", "Cached.", ["model_name", "tp_rank", "cache_source"], registry=registry)
    for rank, source, n in (("0", "device", 3), ("1", "device", 4), ("0", "host", 10)):
        cached.labels("m", rank, source).inc(n)
    Counter("sglang:generation_tokens", "Not read.", registry=registry).inc(99)
    found = parse(generate_latest(registry).decode(), ENGINES["sglang"])
    assert found == {"sglang:cached_tokens_total": {'cache_source="device"': 7.0, 'cache_source="host"': 10.0}}


def test_sums_of_histograms() -> None:
    registry = CollectorRegistry()
    Histogram("lightllm_cache_length", "Hit.", ["model_name"], registry=registry).labels("m").observe(70)
    assert parse(generate_latest(registry).decode(), ENGINES["lightllm"]) == {"lightllm_cache_length_sum": {"": 70.0}}


def test_growth_and_totals() -> None:
    before = {"a": {"": 5.0}, "b": {"x": 1.0}}
    grown = growth(before, {"a": {"": 7.0}, "b": {"x": 1.0, "y": 4.0}})
    assert grown == {"a": {"": 2.0}, "b": {"x": 0.0, "y": 4.0}}
    assert total(grown, [["missing"], ["a", "b"], ["a"]]) == 6
    assert total(grown, [["missing"]]) is None
    assert total(grown, []) is None


async def test_a_page_is_read(small: SmallEngine, url: str) -> None:
    async with client(url) as http:
        page = await read(http, ENGINES["vllm"])
    assert page.trouble == ""
    assert page.counters["vllm:prompt_tokens_total"] == {"": 0.0}


@pytest.mark.parametrize(
    ("text", "engine", "told"),
    [
        (None, "sglang", "no counters of sglang: start the server with --enable-metrics"),
        ("python_info 1\n", "llamacpp", "start the server with --metrics"),
        ("python_info 1\n", "vllm", "no counters of vllm"),
        ("<html>hello</html>", "vllm", "not in Prometheus' format"),
        ("vllm:prompt_tokens_total many\n", "vllm", "not in Prometheus' format"),
        ("", "openai", "no metrics are known"),
    ],
)
async def test_a_page_that_says_nothing_says_why(
    small: SmallEngine, url: str, text: str | None, engine: str, told: str
) -> None:
    small.metrics = lambda: text
    async with client(url) as http:
        page = await read(http, ENGINES[engine])
    assert not page.counters
    assert told in page.trouble


async def test_nobody_there() -> None:
    async with client("http://127.0.0.1:9") as http:
        page = await read(http, ENGINES["vllm"])
    assert "could not be read: ConnectError" in page.trouble
