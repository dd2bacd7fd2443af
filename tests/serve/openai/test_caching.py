"""OpenAI's prompt caching through its SDK, on a real engine that is served under names of OpenAI's models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI

from longturn.engine import EngineService
from longturn.serve import create_app, in_background
from tests.serve.conftest import tiny_options
from tests.tiny_model import build_tiny_model

MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}


@contextmanager
def served(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[OpenAI]:
    folder: Path = build_tiny_model(tmp_path_factory.mktemp("long"), context=8192)
    service = EngineService.start(tiny_options(folder, served_name=name, device_tokens=1 << 16))
    with in_background(create_app(service), service) as url, OpenAI(base_url=f"{url}/v1", api_key="-") as sdk:
        yield sdk
    service.check_integrity()
    service.close()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with served(tmp_path_factory, "gpt-5") as sdk:
        yield sdk


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with served(tmp_path_factory, "gpt-5.6-sol") as sdk:
        yield sdk


def text(seed: str, tokens: int) -> str:
    """About so many tokens that begin like no other's."""
    return f"{seed} " + "Q" * tokens


def part(text: str, mark: dict | None = None) -> dict:
    return {"type": "input_text", "text": text, **(mark or {})}


def say(sdk: OpenAI, input: object, **more: object):
    model = sdk.models.list().data[0].id
    return sdk.responses.create(model=model, input=input, max_output_tokens=2, temperature=0, **more)


def counts(answer) -> tuple[int, int]:
    details = answer.usage.input_tokens_details
    assert details.cached_tokens <= sum(answer.usage.longturn["cached"].values())
    assert details.cached_tokens + details.cache_write_tokens <= answer.usage.input_tokens
    return details.cached_tokens, details.cache_write_tokens


def test_intervals_are_whole_and_not_short(older: OpenAI):
    assert [counts(say(older, text("short", 900))) for _ in range(2)] == [(0, 0), (0, 0)]
    first, second, longer = (say(older, text("long", n)) for n in (1500, 1500, 1600))
    really = sum(second.usage.longturn["cached"].values())
    assert counts(first) == (0, 0)
    assert really > 1408
    assert counts(second) == (really // 128 * 128, 0) == (1408, 0)
    assert counts(longer) == (1408, 0)
    # The key only routes.
    assert counts(say(older, text("long", 1500), prompt_cache_key="k")) == (1408, 0)


def test_chat_completions_count_the_same(older: OpenAI):
    messages = [{"role": "user", "content": text("chat", 1500)}]
    first, second = (older.chat.completions.create(model="gpt-5", messages=messages, max_tokens=2) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == 1408
    *_, last = older.chat.completions.create(
        model="gpt-5", messages=messages, max_tokens=2, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage.prompt_tokens_details.cached_tokens == 1408
    assert sum(last.usage.longturn["cached"].values()) > 1408


def test_older_models_know_no_breakpoints(older: OpenAI):
    for input, more in (("x", {"prompt_cache_options": {"ttl": "30m"}}), ([_user(part("x", MARK))], {})):
        with pytest.raises(BadRequestError, match=r"gpt-5\.6 and later") as refused:
            say(older, input, **more)
        assert refused.value.code == "unsupported_parameter"
    assert say(older, "x", prompt_cache_retention="24h").prompt_cache_retention == "24h"


def _user(*parts: dict) -> dict:
    return {"role": "user", "content": list(parts)}


def test_a_message_end_is_read_exactly_and_writes_count(newer: OpenAI):
    history = [_user(part(text("exact", 1500)))]
    first = say(newer, history)
    read, written = counts(first)
    assert read == 0
    assert 1500 <= written < first.usage.input_tokens
    assert first.usage.input_tokens_details.cache_write_tokens_details.ttl_30m_tokens == written
    assert counts(say(newer, history)) == (written, 0)
    history += [*first.output, _user(part(text("next", 300)))]
    second = say(newer, history)
    assert counts(second)[0] == written
    assert counts(second)[1] > 300
    assert counts(say(newer, history)) == (sum(counts(second)), 0)
    assert (first.prompt_cache_options.mode, first.prompt_cache_options.ttl) == ("implicit", "30m")


def test_a_shared_beginning_needs_a_mark(newer: OpenAI):
    head, tails = text("shared", 1200), ("one", "two")
    unmarked = [say(newer, [_user(part(head), part(text(tail, 50)))]) for tail in tails]
    assert [counts(answer)[0] for answer in unmarked] == [0, 0]
    assert sum(unmarked[1].usage.longturn["cached"].values()) > 1200
    marked = [say(newer, [_user(part(head, MARK), part(text(tail, 60)))]) for tail in tails]
    assert counts(marked[0])[0] == 0
    assert 1200 <= counts(marked[1])[0] < 1220


def test_explicit_mode_without_marks_does_not_cache(newer: OpenAI):
    options = {"prompt_cache_options": {"mode": "explicit"}}
    assert [counts(say(newer, text("none", 1500), **options)) for _ in range(2)] == [(0, 0), (0, 0)]
    # Nor does it find what was written at an implied end.
    say(newer, text("implied", 1500))
    assert counts(say(newer, text("implied", 1500), **options)) == (0, 0)
    answer = say(newer, [_user(part(text("implied", 1500), MARK))], **options)
    assert counts(answer)[0] > 1500
    assert answer.prompt_cache_options.mode == "explicit"


def test_a_key_is_a_cache_of_its_own(newer: OpenAI):
    ask = text("key", 1500)
    assert counts(say(newer, ask, prompt_cache_key="a"))[0] == 0
    assert counts(say(newer, ask, prompt_cache_key="b"))[0] == 0
    again = say(newer, ask, prompt_cache_key="a")
    assert counts(again)[0] > 1500
    assert again.prompt_cache_key == "a"


def test_a_setting_that_changes_the_prefix_misses(newer: OpenAI):
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    ask = text("settings", 1500)
    say(newer, ask, tools=tools)
    assert counts(say(newer, ask, tools=tools, tool_choice="none"))[0] > 1500
    assert counts(say(newer, ask, tools=tools, reasoning={"effort": "high"}))[0] == 0
    assert counts(say(newer, ask))[0] == 0


def test_lives_are_counted_apart(newer: OpenAI):
    long = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    answer = say(newer, [_user(part(text("lives", 1200), long), part(text("more", 200)))])
    split = answer.usage.input_tokens_details.cache_write_tokens_details
    assert 1200 <= split.ttl_12h_tokens < 1220
    assert 200 <= split.ttl_30m_tokens < 220
    assert counts(answer)[1] == split.ttl_12h_tokens + split.ttl_30m_tokens
    with pytest.raises(BadRequestError, match="12h"):
        say(newer, [_user(part("x", {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "5m"}}))])


def test_tools_are_part_of_what_leading_instructions_leave(newer: OpenAI):
    tools = [{"type": "function", "name": "f", "description": text("tool", 600), "parameters": {"type": "object"}}]
    for number in range(2):
        answer = say(newer, text(f"question {number}", 100), instructions=text("rules", 900), tools=tools)
    # The instructions alone are too short to be kept.
    assert counts(answer)[0] == 0
    head = [{"role": "developer", "content": [part(text("head", 900), MARK)]}]
    for number in range(2):
        answer = say(newer, [*head, _user(part(text(f"question {number}", 100)))], tools=tools)
    assert counts(answer)[0] > 1500


def test_chat_completions_have_breakpoints(newer: OpenAI):
    def ask(tail: str):
        content = [{"type": "text", "text": text("chat", 1200), **MARK}, {"type": "text", "text": text(tail, 40)}]
        answer = newer.chat.completions.create(
            model="gpt-5.6-sol",
            messages=[{"role": "user", "content": content}],
            max_tokens=2,
            prompt_cache_options={"mode": "explicit"},
        )
        return answer.usage.prompt_tokens_details

    first, second = ask("one"), ask("two")
    assert (first.cached_tokens, second.cache_write_tokens) == (0, 0)
    assert second.cached_tokens == first.cache_write_tokens
    assert 1200 <= second.cached_tokens < 1220


def test_other_names_count_what_the_engine_did(client: OpenAI):
    input = [_user(part(text("local", 300), MARK))]
    first, second = (
        client.responses.create(model="tiny", input=input, max_output_tokens=2, prompt_cache_key="k", temperature=0)
        for _ in range(2)
    )
    assert first.usage.input_tokens_details.cached_tokens <= 10
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached == sum(second.usage.longturn["cached"].values()) == second.usage.input_tokens - 1


def test_a_request_that_prewarms_is_not_answered(newer: OpenAI):
    warm = say(newer, text("warm", 1500), prompt_cache_options={"prewarm": True})
    assert (warm.status, warm.output, warm.usage.output_tokens) == ("completed", [], 0)
    assert counts(warm)[1] > 1500
    assert counts(say(newer, text("warm", 1500)))[0] == counts(warm)[1]


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


@pytest.mark.parametrize(
    ("input", "more", "reason"),
    [
        ("same", {"prompt_cache_key": "b"}, "prompt_cache_key_changed"),
        ("same", {"tools": [TOOL]}, "tools_changed"),
        ("same", {"text": {"format": {"type": "json_object"}}}, "text_format_changed"),
        ("same", {"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
        ("same", {"text": {"verbosity": "low"}}, "verbosity_changed"),
        ("other", {}, "input_changed"),
        ("same", {"service_tier": "flex"}, "service_tier_changed"),
    ],
)
def test_a_miss_is_diagnosed(newer: OpenAI, input: str, more: dict, reason: str):
    first = say(newer, text(f"same {reason}", 1500), prompt_cache_key="a")
    compare = {"prompt_cache_options": {"comparison_response_id": first.id}}
    answer = say(newer, text(f"{input} {reason}", 1500), **{"prompt_cache_key": "a", **compare, **more})
    told = answer.prompt_cache_diagnostics
    assert (told.type, told.reason) == ("cache_miss", reason)
    assert told.comparison_reusable_tokens == counts(first)[1]
    assert 1500 < told.cache_missed_tokens <= answer.usage.input_tokens


def test_what_is_no_miss_is_told_apart(newer: OpenAI):
    ask = [_user(part(text("hit", 1500)))]
    first = say(newer, ask)

    def compared(id: str, input: object):
        answer = say(newer, input, prompt_cache_options={"comparison_response_id": id}, stream=True)
        created, *_, last = answer
        assert created.response.prompt_cache_diagnostics is None
        assert last.response.prompt_cache_options.comparison_response_id == id
        return last.response.prompt_cache_diagnostics.type

    assert compared(first.id, [*ask, *first.output, _user(part("And?"))]) == "cache_hit"
    assert compared("resp_0", ask) == "comparison_response_not_found"
    short = say(newer, "too short to be kept")
    assert compared(short.id, "too short to be kept") == "unavailable"
    assert first.prompt_cache_diagnostics is None


def test_what_is_kept_longer_outlives_pressure(tiny_folder: Path):
    """On the engine's real pages, whatever the model is called."""
    service = EngineService.start(tiny_options(tiny_folder, device_tokens=2600, host_bytes=0))
    with in_background(create_app(service), service) as url, OpenAI(base_url=f"{url}/v1", api_key="-") as sdk:

        def cached(seed: str, **more: object) -> int:
            return say(sdk, text(seed, 600), **more).usage.input_tokens_details.cached_tokens

        kept = {"minutes": {"prompt_cache_options": {"ttl": "30m"}}, "day": {"prompt_cache_retention": "24h"}}
        for seed, more in kept.items():
            cached(seed, **more)
        chat = [{"role": "user", "content": [{"type": "text", "text": text("marked", 600), **MARK}]}]
        sdk.chat.completions.create(model="tiny", messages=chat, max_tokens=2)
        for seed in ("plain", *map(str, range(5))):
            cached(seed)
        assert all(cached(seed, **more) > 600 for seed, more in kept.items())
        again = sdk.chat.completions.create(model="tiny", messages=chat, max_tokens=2)
        assert again.usage.prompt_tokens_details.cached_tokens > 600
        assert cached("plain") < 20
    service.check_integrity()
    service.close()
