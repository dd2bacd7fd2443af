"""Anthropic's context editing, compaction and diagnostics through the SDK."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

from longturn.explain import limits
from longturn.serve import create_app, in_background
from longturn.serve.anthropic import compaction
from tests.serve.fake_service import FakeService

numbers = itertools.count()
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "look")]
BETAS = ["context-management-2025-06-27", "compact-2026-01-12"]


@pytest.fixture(autouse=True)
def short_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model does not know when to stop."""
    monkeypatch.setattr(compaction, "SUMMARY_TOKENS", 30)


def text(length: int) -> str:
    return f"{next(numbers)} {time.monotonic_ns()} ".ljust(length, "x")


def history(calls: int = 6, thinking: bool = False) -> list[dict[str, Any]]:
    """A question and as many calls, each with a result of 100 characters; every second is of `look`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text(30)}]
    for n in range(calls):
        call = {"type": "tool_use", "id": f"c{n}", "name": TOOLS[n % 2]["name"], "input": {"path": f"file {n}"}}
        thought = [{"type": "thinking", "thinking": f"thought {n}", "signature": "s"}] if thinking else []
        messages.append({"role": "assistant", "content": [*thought, call]})
        result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": f"result {n} " + text(90)}
        messages.append({"role": "user", "content": [result]})
    return messages


def clear(**more: Any) -> dict[str, Any]:
    return {"edits": [{"type": "clear_tool_uses_20250919", **more}]}


def at(tokens: int) -> dict[str, Any]:
    return {"type": "input_tokens", "value": tokens}


@pytest.fixture(params=["2023-06-01", "2026-10-21"])
def client(url: str, request: pytest.FixtureRequest) -> Iterator[Anthropic]:
    headers = {"anthropic-version": request.param}
    with Anthropic(base_url=url, api_key="none", max_retries=0, default_headers=headers) as client:
        yield client


@pytest.fixture
def ask(client: Anthropic) -> Callable[..., Any]:
    common = {"model": "tiny", "max_tokens": 4, "betas": BETAS}
    return lambda **more: client.beta.messages.create(**{**common, **more})


def seen(context: dict[str, Any], messages: list[dict]) -> str:
    """The prompt that the model gets."""
    fake = FakeService(["ok"])
    # A template that shows thinking.
    fake.tokenizer.chat_template = fake.tokenizer.chat_template.replace(
        "{{ message['content'] }}", "{{ message.reasoning_content }}{{ message['content'] }}{{ message.tool_calls }}"
    ).replace("{% for", "{{ tools }}{% for")
    with in_background(create_app(fake), fake) as url:
        body = {"model": "tiny", "max_tokens": 4, "messages": messages, "tools": TOOLS, "context_management": context}
        answer = httpx.post(f"{url}/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
    return fake.tokenizer.decode(fake.requests[0].tokens)


def test_old_results_are_cleared_and_it_is_said(ask):
    messages = history()
    answer = ask(messages=messages, tools=TOOLS, context_management=clear(trigger=at(100)))
    [edit] = answer.context_management.applied_edits
    assert (edit.type, edit.cleared_tool_uses) == ("clear_tool_uses_20250919", 3)
    plain = ask(messages=messages, tools=TOOLS)
    assert plain.context_management is None
    assert plain.usage.input_tokens - answer.usage.input_tokens == edit.cleared_input_tokens > 0


def test_below_the_trigger_nothing_is_cleared(ask):
    for trigger in (at(100_000), {"type": "tool_uses", "value": 6}):
        answer = ask(messages=history(), tools=TOOLS, context_management=clear(trigger=trigger))
        assert answer.context_management.applied_edits == []
    answer = ask(messages=history(), tools=TOOLS, context_management=clear(trigger={"type": "tool_uses", "value": 5}))
    assert answer.context_management.applied_edits[0].cleared_tool_uses == 3


def test_what_is_cleared():
    def left(**more: Any) -> str:
        prompt = seen(clear(trigger=at(10), **more), history())
        return "".join(str(n) for n in range(6) if f"result {n}" in prompt)

    keep = {"type": "tool_uses", "value": 2}
    assert left() == "345"
    assert left(keep=keep) == "45"
    assert left(keep=keep, exclude_tools=["look"]) == "1345"
    assert left(keep=keep, clear_at_least=at(100_000)) == "012345"
    assert left(keep={"type": "tool_uses", "value": 0}) == ""


def test_inputs_are_cleared_where_asked():
    def left(inputs: Any) -> str:
        prompt = seen(clear(trigger=at(10), clear_tool_inputs=inputs), history())
        return "".join(str(n) for n in range(6) if f"file {n}" in prompt)

    assert (left(False), left(True), left(["look"])) == ("012345", "345", "02345")


def test_thinking_of_old_turns_is_cleared():
    def left(**keep: Any) -> str:
        context = {"edits": [{"type": "clear_thinking_20251015", **keep}]}
        prompt = seen(context, history(thinking=True))
        return "".join(str(n) for n in range(6) if f"thought {n}" in prompt)

    assert left() == "5"
    assert left(keep={"type": "thinking_turns", "value": 3}) == "345"
    assert left(keep="all") == left(keep={"type": "all"}) == "012345"


def test_the_client_keeps_its_history(ask):
    messages = history()
    before = copy.deepcopy(messages)
    ask(messages=messages, tools=TOOLS, context_management=clear(trigger=at(100)))
    assert messages == before


def test_edits_are_told_at_the_end_of_a_stream(client: Anthropic):
    with client.beta.messages.stream(
        model="tiny",
        max_tokens=3,
        messages=history(),
        tools=TOOLS,
        betas=BETAS,
        context_management=clear(trigger=at(100)),
    ) as stream:
        last = stream.get_final_message()
    assert last.context_management.applied_edits[0].cleared_tool_uses == 3


def test_counting_knows_edits(client: Anthropic):
    messages = history()
    counted = client.beta.messages.count_tokens(
        model="tiny", messages=messages, tools=TOOLS, betas=BETAS, context_management=clear(trigger=at(100))
    )
    plain = client.messages.count_tokens(model="tiny", messages=messages, tools=TOOLS).input_tokens
    assert counted.input_tokens < plain == counted.context_management.original_input_tokens


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"type": "novelty_20270101"}], "'novelty_20270101' are not supported"),
        ([{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}], "must be the first"),
        ([{"type": "clear_tool_uses_20250919"}] * 2, "once"),
        ([{"type": "compact_20260112", "trigger": at(100)}], "at least 512"),
        ([{"type": "clear_tool_uses_20250919", "keep": -1}], "keep"),
    ],
)
def test_bad_edits_are_refused(ask, edits: list[dict], message: str):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(messages=history(1), tools=TOOLS, context_management={"edits": edits})
    assert message in caught.value.message


# -- compaction -------------------------------------------------------------------------------------------------------


def compacting(**more: Any) -> dict[str, Any]:
    return {"edits": [{"type": "compact_20260112", "trigger": at(600), **more}]}


def long_talk() -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": text(500)},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": text(200)},
    ]


def test_a_long_conversation_is_compacted_and_answered(ask):
    messages = long_talk()
    answer = ask(messages=messages, context_management=compacting())
    first, *_ = answer.content
    assert first.type == "compaction"
    assert first.content
    compaction, message = answer.usage.iterations
    assert (compaction.type, message.type) == ("compaction", "message")
    # The summary's prompt is the conversation with the instruction behind it, the answer's is the summary.
    assert compaction.input_tokens > ask(messages=messages).usage.input_tokens
    assert (message.input_tokens, message.output_tokens) == (answer.usage.input_tokens, answer.usage.output_tokens)
    # On the next request the block stands for everything before it.
    rest = [{"role": "assistant", "content": [first.to_dict()]}, {"role": "user", "content": "And?"}]
    assert ask(messages=[*messages, *rest]).usage.input_tokens == ask(messages=rest).usage.input_tokens


def test_a_short_one_is_not(ask):
    answer = ask(messages=[{"role": "user", "content": "Hello"}], context_management=compacting())
    assert answer.usage.iterations is None
    assert all(block.type == "text" for block in answer.content)


def test_an_answer_may_pause_after_the_compaction(client: Anthropic, ask):
    context = compacting(pause_after_compaction=True, instructions="Sum up.")
    answer = ask(messages=long_talk(), context_management=context)
    assert (answer.stop_reason, [block.type for block in answer.content]) == ("compaction", ["compaction"])
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (0, 0)
    assert [entry.type for entry in answer.usage.iterations] == ["compaction"]
    with client.beta.messages.stream(
        model="tiny", max_tokens=4, messages=long_talk(), betas=BETAS, context_management=context
    ) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
    assert last.content[0].content
    assert last.stop_reason == "compaction"
    assert kinds[0] == "message_start"


def test_a_compaction_is_streamed_before_the_answer(client: Anthropic):
    with client.beta.messages.stream(
        model="tiny", max_tokens=4, messages=long_talk(), betas=BETAS, context_management=compacting()
    ) as stream:
        events = list(stream)
        last = stream.get_final_message()
    assert last.content[0].type == "compaction"
    assert last.content[0].content
    starts = [event.index for event in events if event.type == "content_block_start"]
    assert starts == list(range(len(last.content)))


def test_a_summary_continues_what_the_cache_holds(ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(limits.MINIMUMS, "anthropic", (("", 100),))
    messages, context = long_talk(), compacting()
    settings = {"cache_control": {"type": "ephemeral"}, "context_management": context}
    first = ask(messages=messages[:1], **settings).usage
    assert first.iterations is None
    compaction, message = ask(messages=messages, **settings).usage.iterations
    assert compaction.cache_read_input_tokens == first.cache_creation_input_tokens > 400
    assert message.cache_read_input_tokens == 0


def test_compaction_on_demand(client: Anthropic):
    common = {"model": "tiny", "max_tokens": 8, "messages": long_talk()}
    asked = {**common, "extra_body": {"compaction": {"type": "summarize"}}}
    answer = client.beta.messages.create(**asked)
    assert (answer.stop_reason, answer.content[0].type) == ("compaction", "compaction")
    assert answer.usage.output_tokens == 0
    with client.beta.messages.stream(**asked) as stream:
        assert stream.get_final_message().content[0].content
    with pytest.raises(anthropic.BadRequestError, match="cannot be combined"):
        client.beta.messages.create(**asked, context_management={"edits": []})


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_summary(stream: bool):
    fake = FakeService(["never ", "ending"], reason=None)
    body = {"model": "tiny", "max_tokens": 4, "messages": long_talk(), "stream": stream}
    with in_background(create_app(fake), fake) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/messages", json={**body, "context_management": compacting()}, timeout=0.5)
        for _ in range(100):
            if fake.cancelled:
                break
            time.sleep(0.02)
    assert fake.cancelled == [fake.requests[0].id]


def test_a_summary_that_fails_is_the_clients_error():
    fake = FakeService(["x"], "error", RuntimeError("secret"))
    body = {"model": "tiny", "max_tokens": 4, "messages": long_talk(), "stream": True}
    with in_background(create_app(fake), fake) as url:
        answer = httpx.post(f"{url}/v1/messages", json={**body, "context_management": compacting()})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "api_error")
    assert "secret" not in answer.text


# -- diagnostics ------------------------------------------------------------------------------------------------------


def test_diagnostics_name_the_first_divergence(client: Anthropic):
    system, tools = text(200), TOOLS[:1]
    messages = [{"role": "user", "content": text(100)}]
    common = {"model": "tiny", "max_tokens": 2, "system": system, "tools": tools, "messages": messages}
    first = client.messages.create(**common, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    assert client.messages.create(**common).diagnostics is None

    def reason(**change: Any) -> Any:
        answer = client.messages.create(**{**common, **change}, diagnostics={"previous_message_id": first.id})
        return answer.diagnostics and answer.diagnostics.cache_miss_reason

    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "On."}]
    assert reason() is None
    assert reason(messages=more) is None
    assert reason(tools=TOOLS).type == "tools_changed"
    changed = reason(system=text(200))
    assert changed.type == "system_changed"
    missed = reason(messages=[{"role": "user", "content": "Other."}, *more[1:]])
    assert missed.type == "messages_changed"
    assert 0 < missed.cache_missed_input_tokens < changed.cache_missed_input_tokens
    assert reason(tool_choice={"type": "none"}).type == "unavailable"
    assert reason(extra_body={"speed": "fast"}).type == "model_changed"
    first = client.messages.create(**common, diagnostics={"previous_message_id": "msg_unknown"})
    assert first.diagnostics.cache_miss_reason.type == "previous_message_not_found"


def test_a_stream_has_its_diagnosis_at_its_start(client: Anthropic):
    common = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
    with client.messages.stream(**common, diagnostics={"previous_message_id": "msg_unknown"}) as stream:
        first = next(iter(stream))
    assert first.message.diagnostics.cache_miss_reason.type == "previous_message_not_found"
