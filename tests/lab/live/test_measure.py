"""Whole runs: against our own server with a tiny model, and against a small engine that can be told what to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from longturn.engine import EngineService
from longturn.errors import ConfigError, LongturnError
from longturn.lab.live import Model, Pace, Plan, measure
from longturn.serve import Keys, create_app, in_background
from tests.lab.live.servers import SmallEngine, raw
from tests.lab.live.traces import Listed, chats, request
from tests.serve.conftest import tiny_options
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineService]:
    folder = build_tiny_model(tmp_path_factory.mktemp("tiny"))
    service = EngineService.start(tiny_options(folder, host_bytes=0))
    yield service
    service.check_integrity()
    service.close()


@pytest.fixture(scope="module")
def own(service: EngineService) -> Iterator[str]:
    with in_background(create_app(service, Keys(["secret"], shared_cache=True)), service) as url:
        yield url


async def measured(url: str, trace: Listed, **plan: Any) -> dict[str, Any]:
    # One seed for all: with the clock's, one in so many thousand runs finds two prompts equal by accident.
    report = await measure(trace, Plan(url, **{"seed": 1, **plan}))
    assert json.loads(json.dumps(report)) is not None
    return report


async def test_our_own_server_caches_what_the_model_of_it_says(own: str) -> None:
    beside = Model("longturn", {}, 8192)
    report = await measured(own, chats(4, 4), vocab=256, api_key="secret", beside=beside)
    assert (report["engine"], report["model"], report["window"]) == ("longturn", "tiny", 2048)
    assert report["totals"]["outcomes"] == {"ok": 16}
    assert report["totals"]["sent"] == report["totals"]["logical"]
    assert report["totals"]["cached"] > report["totals"]["computed"] > 0
    assert report["metrics"]["trouble"] is None
    assert report["metrics"]["drift"] == {"logical": 0, "cached": 0}
    assert report["metrics"]["counted"]["computed"] == report["totals"]["computed"]
    told = report["modelled"]
    assert (told["compared"], told["exact"], told["drift"]) == (16, 16, 0)
    assert all(row["modelled_cached_tokens"] == row["cached_tokens"] for row in report["requests"])
    assert report["times"]["ttft_s"]["p50"] > 0
    assert any("16 answers later prompts hold the trace's" in note for note in report["notes"])


async def test_the_same_seed_finds_its_content_cached_and_the_clock_never_does(own: str) -> None:
    trace = Listed([request("a", range(100))])
    cached = []
    for seed in (5, 5, None, None):
        report = await measured(own, trace, vocab=256, api_key="secret", seed=seed)
        cached.append(report["totals"]["cached"])
    assert cached[1] == 99
    assert [n < 20 for n in cached] == [True, False, True, True]


async def test_a_trace_is_scaled_to_the_window(own: str) -> None:
    trace = Listed([request("a", range(60), 400, unit=512), request("a", range(90), 400, unit=512)], unit=512)
    report = await measured(own, trace, vocab=256, api_key="secret")
    assert report["totals"]["outcomes"] == {"ok": 2}
    assert report["scale"] < 2048 / 46_000
    assert report["requests"][1]["cached_tokens"] >= report["requests"][0]["sent_tokens"] - 1


async def test_a_key_that_is_refused(own: str) -> None:
    with pytest.raises(LongturnError, match="set LONGTURN_API_KEY"):
        await measured(own, chats(), api_key="wrong")


async def test_answers_of_the_server_are_modelled_too(small: SmallEngine, url: str) -> None:
    report = await measured(url, chats(3, 3), beside=Model("longturn", {}, 8192))
    assert (report["engine"], report["window"], report["scale"]) == ("vllm", 4096, 1.0)
    # All but the newest user message and the answer's last token, whose KV a real engine lacks; ours here has it.
    assert [row["cached_tokens"] for row in report["requests"]][3:] == [65, 65, 65, 90, 90, 90]
    assert report["requests"][8]["modelled_cached_tokens"] == 89
    assert (report["modelled"]["exact"], report["modelled"]["drift"]) == (3, -6)
    assert report["metrics"]["drift"] == {"logical": 0, "cached": 0}
    assert any("9 answers of the server" in note for note in report["notes"])


async def test_not_reported_is_told_and_is_not_zero(small: SmallEngine, url: str) -> None:
    small.reports = "never"
    report = await measured(url, chats(2, 2), beside=Model("longturn", {}, 8192))
    assert (report["totals"]["cached"], report["totals"]["computed"], report["totals"]["reported"]) == (None, None, 0)
    assert {row["cached_tokens"] for row in report["requests"]} == {None}
    assert report["metrics"]["drift"] == {"logical": 0, "cached": None}
    assert report["modelled"]["compared"] == 0
    assert any(
        "4 answers do not report" in note and "--enable-prompt-tokens-details" in note for note in report["notes"]
    )


async def test_an_engine_that_leaves_zeros_out_has_still_said_zero(small: SmallEngine, url: str) -> None:
    small.reports = "hits"
    report = await measured(url, chats(2, 2))
    assert report["requests"][0]["cached_tokens"] == 0
    assert report["totals"]["reported"] == 4
    named = await measured(url, chats(2, 2), engine="llamacpp", window=4096, way="ids", seed=2)
    assert named["requests"][0]["cached_tokens"] is None
    assert named["totals"]["reported"] == 3
    assert named["metrics"]["drift"]["cached"] is None


async def test_the_load_of_others_is_drift(small: SmallEngine, url: str) -> None:
    from longturn.lab.live import Exchange

    def other(one: Exchange) -> None:
        small._prompt.inc(1000)

    report = await measure(chats(1, 2), Plan(url), progress=other)
    assert report["metrics"]["drift"]["logical"] == 2000


async def test_a_server_started_again_has_no_growth(small: SmallEngine, url: str) -> None:
    pages = iter([b"vllm:prompt_tokens_total 50\n"] * 2 + [b"vllm:prompt_tokens_total 3\n"] * 9)
    small.metrics = lambda: next(pages)
    report = await measured(url, chats(1, 1))
    assert "started again" in report["metrics"]["trouble"]
    assert report["metrics"]["counted"]["logical"] is None


@pytest.mark.parametrize("way", ["text", "chat"])
async def test_text_keeps_its_prefix(small: SmallEngine, url: str, way: Any) -> None:
    report = await measured(url, chats(2, 3), way=way, scale=1.0, window=4096)
    sent = [body["prompt"] if way == "text" else body["messages"] for body in small.bodies]
    assert isinstance(sent[0], str) == (way == "text")
    # The small engine counts bytes, and caches all of them: a prompt misses what is new in it.
    new = [row["prompt_tokens"] - row["cached_tokens"] for row in report["requests"]]
    assert max(new[2:]) < 20 * 8
    assert any("a word for each token" in note for note in report["notes"])


async def test_an_engine_that_nobody_knows_gets_text(small: SmallEngine, url: str) -> None:
    small.owner, small.metrics = "acme", lambda: None
    report = await measured(url, chats(1, 1))
    assert (report["engine"], report["way"]) == ("openai", "text")
    assert "--engine" in report["metrics"]["trouble"]
    assert any("not recognised" in note for note in report["notes"])


async def test_failures_are_counted_beside_answers(small: SmallEngine, url: str) -> None:
    small.window = None
    plan = Plan(url, pace=Pace(timeout=0.2), beside=Model("longturn", {}, 8192))

    def slower(one: Any) -> None:
        small.slow, small.window = (30.0, 4096) if one.call.index == 0 else (0.0, 20)

    report = await measure(Listed([request(name, range(50)) for name in "abcd"]), plan, progress=slower)
    assert report["totals"]["outcomes"] == {"ok": 1, "timeout": 1, "http 400": 2}
    assert (report["totals"]["requests"], report["totals"]["answered"]) == (4, 1)
    assert report["totals"]["logical"] == 50
    assert [row["error"] is None for row in report["requests"]] == [True, False, False, False]
    assert report["modelled"]["compared"] == 1
    assert [row["modelled_cached_tokens"] for row in report["requests"]] == [0, None, None, None]
    assert any("does not tell its window" in note for note in report["notes"])


async def test_what_is_no_server() -> None:
    with pytest.raises(LongturnError, match=r"no server answers at http://127\.0\.0\.1:9"):
        await measured("http://127.0.0.1:9", chats())
    loading = b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n"
    with raw(loading) as url, pytest.raises(LongturnError, match="is not ready"):
        await measured(url, chats())
    with (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello") as url,
        pytest.raises(LongturnError, match="--model"),
    ):
        await measured(url, chats())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"url": "http://example.com"}, "example.com is not this machine"),
        ({"url": "http://192.168.1.1:8000"}, "add --allow-remote"),
        ({"url": "http://localhost@example.com"}, "example.com is not this machine"),
        ({"url": "localhost:8000"}, "no HTTP URL"),
        ({"url": "ftp://localhost"}, "no HTTP URL"),
        ({"url": "http://[::1"}, "is no URL"),
        ({"requests": 0}, "--requests is 0"),
        ({"scale": -1.0}, "--scale is -1"),
        ({"pace": Pace(speed=0.0)}, "--speed is 0"),
        ({"pace": Pace(timeout=float("nan"))}, "--timeout is nan"),
        ({"vocab": 10}, "--vocab is 10"),
    ],
)
def test_a_plan_that_cannot_be(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Plan(**{"url": "http://127.0.0.1:9", **wrong})


@pytest.mark.parametrize("url", ["http://127.0.0.2:1", "http://[::1]:8000/v1", "http://localhost"])
def test_this_machine_needs_no_leave(url: str) -> None:
    Plan(url)
    assert Plan("https://example.com/v1", allow_remote=True, api_key="x").url == "https://example.com/v1"
    assert "secret" not in repr(Plan(url, api_key="secret"))


async def test_a_policy_that_cannot_be_is_refused_before_anything_is_sent(small: SmallEngine, url: str) -> None:
    with pytest.raises(ConfigError, match="no policy is called"):
        await measured(url, chats(), beside=Model("nonesuch", {}, 100))
    with pytest.raises(ConfigError, match="no engine is called"):
        await measured(url, chats(), engine="nonesuch")
    assert small.bodies == []
