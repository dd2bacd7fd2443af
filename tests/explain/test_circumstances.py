"""Mechanisms that show in marks, settings, usage and time; and what looks like one of them and is none."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from longturn.errors import ConfigError
from longturn.explain import MECHANISMS, Verdict, explain, lint
from tests.explain.build import MODELS, MORE, PROVIDERS, SYSTEM, TURNS, Turn, call, image, request, result, text

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
NEWEST = "gpt-5.6"

every_provider = pytest.mark.parametrize("provider", PROVIDERS)
openai_dialects = pytest.mark.parametrize("provider", ["openai", "openai-chat"])


def usage(provider: str, prompt: int, cached: int = 0, written: int = 0) -> dict[str, Any]:
    """The provider's usage object for these counts, `prompt` being the whole prompt."""
    match provider:
        case "anthropic":
            plain = prompt - cached - written
            counts = {"cache_read_input_tokens": cached, "cache_creation_input_tokens": written}
            return {"input_tokens": plain, **counts, "output_tokens": 20}
        case "gemini":
            total = {"candidatesTokenCount": 20, "totalTokenCount": prompt + 20}
            return {"promptTokenCount": prompt, "cachedContentTokenCount": cached, **total}
        case "openai":
            details = {"cached_tokens": cached, "cache_write_tokens": written}
            total = {"output_tokens": 20, "total_tokens": prompt + 20}
            return {"input_tokens": prompt, "input_tokens_details": details, **total}
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": details,
        "completion_tokens": 20,
        "total_tokens": prompt + 20,
    }


def sent(body: dict[str, Any], time: Any = None, use: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"request": body, "usage": use, "time": time}


def mechanism(a: dict[str, Any], b: dict[str, Any], provider: str = "anthropic") -> str:
    return explain(a, b, provider).mechanism


# Settings, keys and models.


@pytest.mark.parametrize(
    ("provider", "before", "after"),
    [
        ("openai", {"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "high"}}),
        ("openai", {}, {"text": {"verbosity": "low"}}),
        ("openai", {}, {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
        ("openai", {}, {"parallel_tool_calls": False}),
        ("openai-chat", {"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
        ("openai-chat", {}, {"tool_choice": "required"}),
        ("openai-chat", {}, {"response_format": {"type": "json_object"}}),
        ("openai-chat", {"service_tier": "flex"}, {"service_tier": "priority"}),
        ("anthropic", {}, {"tool_choice": {"type": "any"}}),
        ("anthropic", {}, {"thinking": {"type": "enabled", "budget_tokens": 4000}}),
        ("anthropic", {"output_config": {"effort": "low"}}, {"output_config": {"effort": "max"}}),
        ("anthropic", {}, {"speed": "fast"}),
        ("gemini", {}, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
        ("gemini", {}, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}),
        ("gemini", {}, {"generation_config": {"responseSchema": {"type": "OBJECT"}}}),
    ],
)
def test_setting_changed(provider: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    told = explain(request(provider, **before), request(provider, TURNS + MORE, **after), provider)
    assert told.mechanism == "setting_changed"
    assert told.append_only
    assert told.first_divergence is not None
    [name] = after
    assert told.first_divergence.json_path.startswith(f"$.{name}")
    assert told.lost_tokens > 0


@pytest.mark.parametrize(
    ("provider", "setting"),
    [
        ("openai", {"reasoning": {"effort": "medium"}}),
        ("openai", {"text": {"format": {"type": "text"}, "verbosity": "medium"}}),
        ("openai", {"parallel_tool_calls": True, "tool_choice": "none"}),
        ("openai-chat", {"tool_choice": {"type": "allowed_tools", "tools": []}}),
        ("openai-chat", {"service_tier": "auto", "response_format": {"type": "text"}}),
        ("anthropic", {"output_config": {"effort": "high"}}),
        ("anthropic", {"thinking": {"type": "disabled"}, "tool_choice": {"type": "auto"}}),
        ("gemini", {"toolConfig": {}, "generationConfig": {}}),
    ],
)
def test_a_default_that_is_spelled_out_is_no_change(provider: str, setting: dict[str, Any]) -> None:
    assert mechanism(request(provider), request(provider, TURNS + MORE, **setting), provider) == "none"


def test_a_setting_of_the_messages_yields_to_a_change_of_the_system_prompt() -> None:
    a = request("anthropic", system=SYSTEM + "It is 10:01.")
    b = request("anthropic", system=SYSTEM + "It is 10:02.", tool_choice={"type": "any"})
    assert mechanism(a, b) == "volatile_text"


def test_beta_features_are_a_setting() -> None:
    def told(before: Any, after: Any) -> Verdict:
        a, b = request("anthropic"), request("anthropic", TURNS + MORE)
        return explain({"request": a, "headers": before}, {"request": b, "headers": after}, "anthropic")

    changed = told({"Anthropic-Beta": "one,two"}, {"anthropic-beta": "two"})
    assert changed.mechanism == "setting_changed"
    assert changed.first_divergence is not None
    assert changed.first_divergence.json_path.startswith("$.headers.anthropic-beta")
    assert changed.lost_tokens > 0
    assert told({"anthropic-beta": "one,two"}, {"anthropic-beta": "two, one"}).mechanism == "none"
    for strange in (None, [], "x", {}, {"anthropic-beta": None}, {"other": "x"}):
        assert told(strange, None).mechanism == "none"


@openai_dialects
@pytest.mark.parametrize(("before", "after"), [("a7f0", "0c31"), ("session-1", None), (None, "workspace")])
def test_cache_key(provider: str, before: str | None, after: str | None) -> None:
    def keyed(turns: list[Turn], key: str | None) -> dict[str, Any]:
        return request(provider, turns, **({"prompt_cache_key": key} if key else {}))

    told = explain(keyed(TURNS, before), keyed(TURNS + MORE, after), provider)
    assert told.mechanism == "cache_key"
    assert told.first_divergence is not None
    assert told.first_divergence.json_path == "$.prompt_cache_key"
    assert mechanism(keyed(TURNS, before), keyed(TURNS + MORE, before), provider) == "none"


@every_provider
def test_another_model_is_another_place(provider: str) -> None:
    told = explain(request(provider), request(provider, TURNS + MORE, model="other-1"), provider)
    assert told.mechanism == "routing"
    assert told.first_divergence is not None
    assert (told.first_divergence.before, told.first_divergence.after) == (MODELS[provider], "other-1")


@pytest.mark.parametrize(
    ("provider", "before", "after"),
    [
        ("openai-chat", {"provider": {"order": ["a"]}}, {"provider": {"order": ["b"]}}),
        ("openai-chat", {}, {"provider": {"only": ["b"]}}),
        ("anthropic", {"inference_geo": "us"}, {"inference_geo": "eu"}),
    ],
)
def test_another_provider_or_region_is_another_place(provider: str, before: Any, after: Any) -> None:
    assert mechanism(request(provider, **before), request(provider, TURNS + MORE, **after), provider) == "routing"


@every_provider
@pytest.mark.parametrize("gap", [20, 60, 200])
def test_a_miss_without_a_reason_is_routing(provider: str, gap: float) -> None:
    a = sent(request(provider), 1000.0, usage(provider, 3000, 2000, 1000))
    missed = sent(request(provider, TURNS + MORE), 1000.0 + gap, usage(provider, 3100, 0, 3100))
    told = explain(a, missed, provider)
    assert told.mechanism == "routing"
    assert told.lost_tokens == 3000
    assert told.first_divergence is None
    found = sent(request(provider, TURNS + MORE), 1000.0 + gap, usage(provider, 3100, 2900, 200))
    assert mechanism(a, found, provider) == "none"


# Time.


@pytest.mark.parametrize(
    ("provider", "settings", "within", "after"),
    [
        ("anthropic", {}, 290, 360),
        ("openai", {"prompt_cache_options": {"ttl": "30m"}}, 1700, 2000),
        ("openai", {"prompt_cache_options": {"mode": "implicit", "ttl": "12h"}}, 40000, 50000),
        ("openai", {"model": "gpt-6-sol"}, 1700, 2000),
        ("openai-chat", {"prompt_cache_retention": "24h"}, 80000, 90000),
        ("openai-chat", {"model": "gpt-4o"}, 3000, 4000),
        ("gemini", {}, 80000, 90000),
    ],
)
def test_ttl_expired(provider: str, settings: dict[str, Any], within: float, after: float) -> None:
    a, b = request(provider, **settings), request(provider, TURNS + MORE, **settings)
    assert mechanism(sent(a, 1e6), sent(b, 1e6 + after), provider) == "ttl_expired"
    assert mechanism(sent(a, 1e6), sent(b, 1e6 + within), provider) == "none"


def test_times_as_text() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    assert mechanism(sent(a, "2026-11-30T10:00:00Z"), sent(b, "2026-11-30T12:06:00+02:00")) == "ttl_expired"
    assert (
        mechanism(sent(a, "2026-11-30T10:00:00"), sent(b, datetime(2026, 11, 30, 10, 4, tzinfo=UTC).isoformat()))
        == "none"
    )
    assert mechanism(sent(a, 1_790_000_000_000), sent(b, 1_790_000_100_000)) == "none"
    with pytest.raises(ConfigError, match="ISO 8601"):
        explain(sent(a, "noon"), b, "anthropic")


def test_an_hours_mark_outlives_the_five_minutes_behind_it() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    for body in (a, b):
        body["system"][0]["cache_control"] = HOUR
    late = explain(sent(a, 0), sent(b, 400), "anthropic")
    later = explain(sent(a, 0), sent(b, 4000), "anthropic")
    assert (late.mechanism, later.mechanism) == ("ttl_expired", "ttl_expired")
    assert 0 < late.lost_tokens < later.lost_tokens
    for body in (a, b):
        body["messages"][-1]["content"][-1]["cache_control"] = HOUR
    assert mechanism(sent(a, 0), sent(b, 400)) == "none"


def test_another_time_to_live_at_the_same_place_is_written_again() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    a["system"][0]["cache_control"] = HOUR
    wrote, again = usage("anthropic", 3000, 0, 3000), usage("anthropic", 3100, 0, 3100)
    assert mechanism(sent(a, 0, wrote), sent(b, 60, again)) == "ttl_expired"
    assert mechanism(sent(a, 0, wrote), sent(b, 60, usage("anthropic", 3100, 3000, 100))) == "none"
    assert mechanism(sent(a, 0), sent(b, 60)) == "none"


def test_marks_that_only_the_usage_shows_expire_too() -> None:
    a, b = request("anthropic", mark=False), request("anthropic", TURNS + MORE, mark=False)
    a, b = sent(a, 0, usage("anthropic", 3000, 0, 3000)), sent(b, 400, usage("anthropic", 3100, 0, 3100))
    assert mechanism(a, b) == "ttl_expired"


def test_a_hit_after_all_is_not_expired() -> None:
    a = sent(request("anthropic"), 0, usage("anthropic", 3000, 0, 3000))
    b = sent(request("anthropic", TURNS + MORE), 900, usage("anthropic", 3100, 3000, 100))
    assert mechanism(a, b) == "none"


def test_an_idle_automatic_cache_may_have_let_go() -> None:
    a = sent(request("openai-chat"), 0, usage("openai-chat", 3000, 2048))
    b = sent(request("openai-chat", TURNS + MORE), 900, usage("openai-chat", 3100, 0))
    assert mechanism(a, b, "openai-chat") == "ttl_expired"


@every_provider
@pytest.mark.parametrize("case", ["another question", "the same", "at the same moment"])
def test_cold_fanout(provider: str, case: str) -> None:
    turns = [*TURNS[:4], ("user", text("Or rather explain the writer."))] if case == "another question" else TURNS
    gap = 0 if case == "at the same moment" else 0.8
    a = sent(request(provider), 50.0, usage(provider, 3000, 0, 3000))
    b = sent(request(provider, turns), 50.0 + gap, usage(provider, 3000, 0, 3000))
    told = explain(a, b, provider)
    assert told.mechanism == "cold_fanout"
    assert told.lost_tokens == 3000


def test_a_fanout_without_times_shows_in_equal_writes() -> None:
    a = sent(request("anthropic"), None, usage("anthropic", 3000, 0, 3000))
    b = request("anthropic", [*TURNS[:4], ("user", text("Or rather explain the writer."))])
    assert mechanism(a, sent(b, None, usage("anthropic", 3010, 0, 3010))) == "cold_fanout"
    assert mechanism(a, sent(b, None, usage("anthropic", 3010, 2900, 110))) == "none"


def test_what_was_answered_before_is_no_fanout() -> None:
    a = sent(request("anthropic"), 50, usage("anthropic", 3000, 0, 3000))
    b = sent(request("anthropic", TURNS + MORE), 55, usage("anthropic", 3100, 0, 3100))
    assert mechanism(a, b) == "routing"
    warm = sent(request("anthropic"), 51, usage("anthropic", 3000, 3000))
    assert mechanism(a, warm) == "none"


# Marks.


@pytest.mark.parametrize("marked", [True, False])
def test_no_marks(marked: bool) -> None:
    a, b = request("anthropic", mark=marked), request("anthropic", TURNS + MORE, mark=False)
    assert mechanism(a, b) == "no_marks"
    assert mechanism(sent(a), sent(b, None, usage("anthropic", 3000))) == "no_marks"


@openai_dialects
def test_no_marks_in_explicit_mode(provider: str) -> None:
    mode = {"prompt_cache_options": {"mode": "explicit"}}
    assert mechanism(request(provider, **mode), request(provider, TURNS + MORE, **mode), provider) == "no_marks"


def test_a_short_prompt_needs_no_marks() -> None:
    a = request("anthropic", TURNS[:1], system="Be brief.", tools=[], mark=False)
    assert mechanism(a, a) == "none"
    automatic = request("anthropic", TURNS + MORE, mark=False, cache_control=MARK)
    assert mechanism(request("anthropic"), automatic) == "none"


def test_a_mark_that_falls_back_is_a_dropped_one() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    del b["messages"][-1]["content"][-1]["cache_control"]
    missed = sent(b, 9, usage("anthropic", 3100, 2400))
    assert mechanism(sent(a, 0, usage("anthropic", 3000, 0, 3000)), missed) == "no_marks"
    assert mechanism(a, b) == "none"


def calls(n: int, *, parallel: bool) -> list[Turn]:
    """An answer that calls `n` tools, one after another or all at once, and its results."""
    asked = [call("read", {"path": f"{i}.py", "limit": 1}, f"call_{i}") for i in range(n)]
    done = [result("ok", key=f"call_{i}") for i in range(n)]
    if parallel:
        return [("assistant", *asked), ("user", *done)]
    return [turn for i in range(n) for turn in (("assistant", asked[i]), ("user", done[i]))]


@pytest.mark.parametrize("n", [11, 12, 30])
def test_lookback_exceeded(n: int) -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + calls(n, parallel=False))
    told = explain(a, b, "anthropic")
    assert told.mechanism == "lookback_exceeded"
    assert told.append_only
    assert 0 < told.lost_tokens < 2000


def test_lookback_exceeded_though_much_was_found_further_ahead() -> None:
    a = sent(request("anthropic"), 0, usage("anthropic", 2000, 0, 2000))
    b = request("anthropic", TURNS + calls(12, parallel=False))
    told = explain(a, sent(b, 9, usage("anthropic", 2600, 1700, 900)), "anthropic")
    assert (told.mechanism, told.lost_tokens) == ("lookback_exceeded", 300)
    assert mechanism(a, sent(b, 9, usage("anthropic", 2600, 2000, 600))) == "none"


def test_lookback_reaches_nineteen_positions_and_counts_a_run_as_one() -> None:
    a = request("anthropic")
    assert mechanism(a, request("anthropic", TURNS + calls(9, parallel=False))) == "none"
    assert mechanism(a, request("anthropic", TURNS + calls(40, parallel=True))) == "none"
    stepping = request("anthropic", TURNS + calls(12, parallel=False))
    stepping["messages"][12]["content"][-1]["cache_control"] = MARK
    assert mechanism(a, stepping) == "none"


@pytest.mark.parametrize("way", ["explicit, only the newest", "to explicit"])
@openai_dialects
def test_marks_not_resent(provider: str, way: str) -> None:
    explicit = {"model": NEWEST, "prompt_cache_options": {"mode": "explicit"}}
    a = marked(request(provider, **explicit), provider, -1)
    if way == "to explicit":
        a = request(provider, model=NEWEST)
    b = marked(request(provider, TURNS + MORE, **explicit), provider, -1)
    assert mechanism(a, b, provider) == "marks_not_resent"
    resent = marked(copy.deepcopy(b), provider, -3)
    assert mechanism(a, resent, provider) == "none"


@openai_dialects
def test_implied_marks_are_enough(provider: str) -> None:
    a, b = request(provider, model=NEWEST), request(provider, TURNS + MORE, model=NEWEST)
    assert mechanism(a, b, provider) == "none"
    early = marked(copy.deepcopy(a), provider, -1)
    assert mechanism(early, b, provider) == "none"


@openai_dialects
def test_implied_marks_reach_twenty_messages(provider: str) -> None:
    a = request(provider, model=NEWEST)
    assert mechanism(a, request(provider, TURNS + MORE * 20, model=NEWEST), provider) == "none"
    assert mechanism(a, request(provider, TURNS + MORE * 21, model=NEWEST), provider) == "lookback_exceeded"


def marked(body: dict[str, Any], provider: str, message: int) -> dict[str, Any]:
    """With a breakpoint on the last part of one message."""
    items = body["input" if provider == "openai" else "messages"]
    items[message]["content"][-1]["prompt_cache_breakpoint"] = {"mode": "explicit"}
    return body


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-opus-4-6", "claude-opus-4.5"])
def test_below_minimum(model: str) -> None:
    a, b = request("anthropic", model=model), request("anthropic", TURNS + MORE, model=model)
    assert mechanism(sent(a, 0, usage("anthropic", 1500)), sent(b, 9, usage("anthropic", 1600))) == "below_minimum"
    assert mechanism(a, b) == "below_minimum"
    wrote = usage("anthropic", 4200, 0, 4200)
    assert mechanism(sent(a, 0, wrote), sent(b, 9, usage("anthropic", 4300, 4200, 100))) == "none"


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "gemini"])
def test_below_minimum_of_an_automatic_cache(provider: str) -> None:
    a, b = (request(provider, turns, system="Be brief.", tools=[]) for turns in (TURNS[:1], TURNS[:1] + MORE))
    told = explain(sent(a, 0, usage(provider, 300)), sent(b, 9, usage(provider, 400)), provider)
    assert told.mechanism == "below_minimum"
    assert told.lost_tokens == 0
    assert mechanism(a, b, provider) == "none"


def test_a_usage_of_the_earlier_request_is_enough_to_see_that_nothing_is_kept() -> None:
    a, b = (request("anthropic", turns, system="Be brief.", tools=[]) for turns in (TURNS[:1], TURNS[:1] + MORE))
    assert mechanism(sent(a, 0, usage("anthropic", 40)), b) == "below_minimum"


def test_a_tiny_prompt_with_marks_is_only_a_lint() -> None:
    a = request("anthropic", TURNS[:1], system="Be brief.", tools=[])
    told = explain(a, a, "anthropic")
    assert told.mechanism == "none"
    assert [found.mechanism for found in told.lints] == ["below_minimum"]


@pytest.mark.parametrize("way", ["blocks", "automatic", "inside a result"])
def test_too_many_marks(way: str) -> None:
    b = request("anthropic", TURNS + MORE)
    b["tools"][-1]["cache_control"] = MARK
    b["messages"][0]["content"][0]["cache_control"] = MARK
    assert mechanism(request("anthropic"), b) == "none"
    if way == "blocks":
        b["messages"][1]["content"][1]["cache_control"] = MARK
    elif way == "automatic":
        del b["messages"][-1]["content"][-1]["cache_control"]
        b["messages"][1]["content"][1]["cache_control"] = MARK
        b["cache_control"] = MARK
    else:
        b["messages"][2]["content"][0]["content"] = [{"type": "text", "text": "x", "cache_control": MARK}]
    assert mechanism(request("anthropic"), b) == "too_many_marks"
    assert "too_many_marks" in {found.mechanism for found in lint(b, "anthropic")}


@pytest.mark.parametrize("place", ["message", "system", "result", "unmarked"])
def test_mark_on_empty_text(place: str) -> None:
    b = request("anthropic", TURNS + MORE, mark=False)
    empty = {"type": "text", "text": "", "cache_control": MARK}
    if place == "message":
        b["messages"][-1]["content"] = [{"type": "image", "source": {"type": "url", "url": "https://x/y"}}, empty]
    elif place == "system":
        b["system"].append(empty)
    elif place == "result":
        b["messages"][2]["content"][0]["content"] = [empty]
    else:
        b["messages"][-1]["content"].insert(0, {"type": "text", "text": ""})
    [found] = [found for found in lint(b, "anthropic") if found.mechanism == "mark_on_empty_text"]
    assert found.path.startswith("$.")
    assert mechanism(request("anthropic"), b) == "mark_on_empty_text"


@pytest.mark.parametrize("key", ["systemInstruction", "system_instruction", "tools", "toolConfig"])
def test_explicit_cache_conflict(key: str) -> None:
    contents = [{"role": "user", "parts": [{"text": "x"}]}]
    a = {"cachedContent": "cachedContents/1", "contents": contents}
    assert mechanism(a, {**a, key: {"parts": [{"text": "y"}]}}, "gemini") == "explicit_cache_conflict"
    assert mechanism(a, {**a, key: None}, "gemini") == "none"
    assert mechanism(a, {**a, "generationConfig": {}}, "gemini") == "none"
    assert mechanism(a, {**a, "cachedContent": "cachedContents/2"}, "gemini") == "cache_key"


def test_a_cached_content_that_is_no_longer_named() -> None:
    def used(prompt: int, cached: int) -> dict[str, int]:
        counts = {"promptTokenCount": prompt, "cachedContentTokenCount": cached, "candidatesTokenCount": 5}
        return {**counts, "totalTokenCount": prompt + 5}

    body = {"contents": [{"role": "user", "parts": [{"text": "x"}]}], "model": "gemini-2.5-flash"}
    a = {"request": {**body, "cachedContent": "cachedContents/1"}, "usage": used(1835, 1825), "time": 1000}
    told = explain(a, {"request": body, "usage": used(35, 0), "time": 1005}, "gemini")
    assert told.mechanism == "cache_key"
    assert told.first_divergence is not None
    assert told.first_divergence.json_path == "$.cachedContent"
    # The later prompt is so much shorter that no more than its own tokens can have been computed.
    assert told.lost_tokens == 35
    assert mechanism(body, {**body, "cachedContent": "cachedContents/1"}, "gemini") == "none"


def test_the_first_image_costs_the_messages() -> None:
    seen = [*TURNS, MORE[0], ("user", image(), text("And what is this?"))]
    told = explain(request("anthropic"), request("anthropic", seen), "anthropic")
    assert (told.mechanism, told.append_only) == ("image_changed", True)
    assert told.lost_tokens < 1000
    assert mechanism(request("openai"), request("openai", seen), "openai") == "none"
    again = [*seen, MORE[0], ("user", image("BBBB"))]
    assert mechanism(request("anthropic", seen), request("anthropic", again)) == "none"


# Bodies and usage.


@pytest.mark.parametrize("order", [("messages", "system", "tools"), ("system", "tools", "messages")])
@pytest.mark.parametrize("vertex", [{}, {"anthropic_version": "vertex-2023-10-16"}])
def test_body_order(order: tuple[str, ...], vertex: dict[str, Any]) -> None:
    a, b = request("anthropic", **vertex), request("anthropic", TURNS + MORE, **vertex)
    b = {key: b[key] for key in (*(key for key in b if key not in order), *order)}
    told = explain(a, b, "anthropic")
    assert told.mechanism == "body_order"
    assert told.append_only
    assert told.confidence == (0.8 if vertex else 0.5)
    hit = sent(b, 9, usage("anthropic", 3100, 3000, 100))
    assert mechanism(sent(a, 0, usage("anthropic", 3000, 0, 3000)), hit) == "none"


def test_the_order_of_other_keys_is_nobodys_concern() -> None:
    a = {"max_tokens": 5, **request("anthropic")}
    b = {**request("anthropic", TURNS + MORE), "max_tokens": 5}
    b["model"] = b.pop("model")
    assert mechanism(a, b) == "none"


@pytest.mark.parametrize(
    ("provider", "reported"),
    [
        ("openai-chat", {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 2000}}),
        (
            "openai-chat",
            {
                "prompt_tokens": 3000,
                "prompt_tokens_details": {"cached_tokens": 2000},
                "completion_tokens": 10,
                "total_tokens": 5010,
            },
        ),
        (
            "openai",
            {
                "input_tokens": 3000,
                "input_tokens_details": {"cached_tokens": 2000},
                "output_tokens": 50,
                "output_tokens_details": {"reasoning_tokens": 40},
                "total_tokens": 3090,
            },
        ),
        ("openai", {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 300}}),
        ("anthropic", {"input_tokens": 3000, "cache_read_input_tokens": 2900, "cache_creation_input_tokens": 100}),
        (
            "anthropic",
            {
                "input_tokens": 10,
                "cache_creation_input_tokens": 100,
                "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 100},
            },
        ),
        ("anthropic", {"prompt_tokens": 3000, "input_tokens": 3000, "cache_read_input_tokens": 2900}),
        ("gemini", {"promptTokenCount": 1000, "cachedContentTokenCount": 2000}),
        (
            "gemini",
            {
                "promptTokenCount": 3000,
                "cachedContentTokenCount": 2000,
                "candidatesTokenCount": 9,
                "totalTokenCount": 5009,
            },
        ),
        (
            "gemini",
            {"promptTokenCount": 10, "candidatesTokenCount": 9, "thoughtsTokenCount": 5, "totalTokenCount": 19},
        ),
    ],
)
def test_usage_double_count(provider: str, reported: dict[str, Any]) -> None:
    a, b = request(provider), request(provider, TURNS + MORE)
    assert mechanism(sent(a, 0), sent(b, 9, reported), provider) == "usage_double_count"


def test_much_input_behind_an_early_mark_is_counted_well() -> None:
    a, b = (request("anthropic", turns, mark=False) for turns in (TURNS, TURNS + MORE * 60))
    for body in (a, b):
        body["system"][0]["cache_control"] = MARK
    told = explain(
        sent(a, 0, usage("anthropic", 2000, 0, 1700)), sent(b, 9, usage("anthropic", 3600, 1700)), "anthropic"
    )
    assert told.mechanism == "none"


def test_input_that_grows_by_what_was_cached_is_counted_twice() -> None:
    a, b = request("anthropic", mark=False), request("anthropic", TURNS + MORE, mark=False)
    inclusive = {"input_tokens": 3100, "cache_read_input_tokens": 3000, "output_tokens": 5}
    assert mechanism(sent(a, 0, usage("anthropic", 3000, 0, 2990)), sent(b, 9, inclusive)) == "usage_double_count"
    prompt = {"prompt_tokens": 3100, "cache_read_input_tokens": 3000}
    assert mechanism(a, sent(b, 9, prompt)) == "usage_double_count"


# Requests in general.


def test_every_mechanism_has_a_detector_and_a_fix() -> None:
    assert len(set(MECHANISMS) - {"none"}) == 25


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="JSON object"):
        explain([], {}, "openai")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`request`"):
        explain({"request": "x"}, {}, "openai")
    with pytest.raises(ConfigError, match="`usage`"):
        explain({"request": {}, "usage": 5}, {}, "openai")


@every_provider
def test_pieces_of_a_wrong_type_are_passed_over(provider: str) -> None:
    odd = {
        "messages": [1, {"content": [2, None]}],
        "tools": 3,
        "system": 4,
        "input": [5],
        "contents": [6, {"parts": 7}],
    }
    assert mechanism(odd, odd, provider) == "none"
