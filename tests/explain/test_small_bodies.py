"""Bodies as people write them by hand: short, with strings for contents, often without marks, some with usage."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from longturn.explain import explain
from tests.explain.build import PROVIDERS
from tests.explain.test_circumstances import MARK, sent, usage

SYSTEM = "You are helpful."
Messages = list[dict[str, Any]]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


BASE: Messages = [user("hi"), answer("hello"), user("what is 2+2?")]
NEXT: Messages = [*BASE, answer("4"), user("thanks")]
NUMBERED: Messages = [m for i in range(6) for m in (user(f"q{i}"), answer(f"a{i}"))] + [user("q6")]
MORE: Messages = [answer("a6"), user("q7")]


def body(provider: str, messages: Messages, system: str = SYSTEM) -> dict[str, Any]:
    match provider:
        case "anthropic":
            return {"model": "claude-sonnet-4-5", "max_tokens": 100, "system": system, "messages": messages}
        case "openai":
            return {"model": "gpt-5", "instructions": system, "input": messages}
        case "openai-chat":
            return {"model": "gpt-4o", "messages": [{"role": "system", "content": system}, *messages]}
    contents = [
        {"role": "user" if m["role"] == "user" else "model", "parts": [{"text": m["content"]}]} for m in messages
    ]
    return {"systemInstruction": {"parts": [{"text": system}]}, "contents": contents}


def marked(messages: Messages) -> dict[str, Any]:
    """For Anthropic, with marks on the system prompt and on the last message."""
    made = copy.deepcopy(body("anthropic", messages))
    made["system"] = [{"type": "text", "text": made["system"], "cache_control": MARK}]
    last = made["messages"][-1]
    last["content"] = [{"type": "text", "text": last["content"], "cache_control": MARK}]
    return made


every_provider = pytest.mark.parametrize("provider", PROVIDERS)


@every_provider
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Date: Mon Nov 30 2026 12:00:01 GMT+0000 (Coordinated Universal Time)",
         "Date: Mon Nov 30 2026 12:00:02 GMT+0000 (Coordinated Universal Time)"),
        ("11/30/2026, 12:00:01 PM", "12/1/2026, 9:05:11 AM"),
        ("HEAD is 3fa9c1b", "HEAD is 77ab0cd"),
        ("request_id: req_9f8a", "request_id: req_1c2b"),
        ("cwd: /home/a", "cwd: /home/b"),
        ("Retrieved: alpha, beta", "Retrieved: gamma, delta, epsilon"),
    ],
)  # fmt: skip
def test_volatile_text_at_either_end(provider: str, before: str, after: str) -> None:
    for how in ("{line}\n" + SYSTEM, SYSTEM + "\n{line}"):
        a, b = body(provider, BASE, how.format(line=before)), body(provider, NEXT, how.format(line=after))
        assert explain(a, b, provider).mechanism == "volatile_text"


@every_provider
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("cch=36ee5", "cch=a0b1c"),
        ("x-request-nonce: abc123", "x-request-nonce: def456"),
        ("cache-bust=9a8b7c", "cache-bust=1d2e3f"),
        ("<!-- nonce 9a8b7c -->", "<!-- nonce 1d2e3f -->"),
    ],
)
def test_client_nonce(provider: str, before: str, after: str) -> None:
    a, b = body(provider, BASE, f"{before}\n{SYSTEM}"), body(provider, NEXT, f"{after}\n{SYSTEM}")
    assert explain(a, b, provider).mechanism == "client_nonce"


REMARK = "<system-reminder>Remember the todo list</system-reminder>"


@every_provider
@pytest.mark.parametrize(
    ("mechanism", "before", "after"),
    [
        ("none", BASE, NEXT),
        ("sliding_window", NUMBERED, NUMBERED[2:] + MORE),
        ("sliding_window", NUMBERED, NUMBERED[1:] + MORE[:1]),
        ("history_rewritten", NUMBERED, [*NUMBERED[:3], answer("[pruned]"), *NUMBERED[4:], *MORE]),
        ("history_rewritten", NUMBERED, [*NUMBERED[:3], answer("..."), *NUMBERED[4:], *MORE]),
        ("history_rewritten", NUMBERED, NUMBERED[:3] + NUMBERED[5:] + MORE),
        ("history_rewritten", NUMBERED, [user("Summary of the conversation: much"), NUMBERED[-1], *MORE]),
        ("whitespace", [user("hi"), answer("hello ")], BASE),
        ("whitespace", [user("hi"), answer("a\nb")], [user("hi"), answer("a\r\nb"), user("x")]),
        ("message_grew", BASE, [*BASE[:2], user("what is 2+2?\nplease hurry"), *NEXT[3:]]),
        ("moved_segment", [*BASE[:2], user("what is 2+2?\n" + REMARK)], [*NEXT[:4], user("thanks\n" + REMARK)]),
        ("moved_segment", [*BASE[:2], user(REMARK + "\nwhat is 2+2?")], [*NEXT[:4], user(REMARK + "\nthanks")]),
        ("moved_segment", [*BASE, user(REMARK)], [*NEXT, user(REMARK)]),
        ("moved_segment", [user(REMARK), *BASE], [*NEXT[:4], user(REMARK), NEXT[4]]),
    ],
)
def test_messages(provider: str, mechanism: str, before: Messages, after: Messages) -> None:
    assert explain(body(provider, before), body(provider, after), provider).mechanism == mechanism


@pytest.mark.parametrize(
    ("mechanism", "gap", "before", "after"),
    [
        ("ttl_expired", 400, (5000, 0, 4990), (5100, 0, 5090)),
        ("none", 200, (5000, 0, 4990), (5100, 4990, 100)),
        ("routing", 30, (5000, 0, 4990), (5100, 0, 5090)),
        ("routing", None, (5000, 0, 4990), (5100, 0, 5090)),
        ("below_minimum", 30, (300, 0, 0), (350, 0, 0)),
    ],
)
def test_marked_prompts(mechanism: str, gap: float | None, before: Any, after: Any) -> None:
    a = sent(marked(BASE), None if gap is None else 1000, usage("anthropic", *before))
    b = sent(marked(NEXT), None if gap is None else 1000 + gap, usage("anthropic", *after))
    assert explain(a, b, "anthropic").mechanism == mechanism


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "gemini"])
@pytest.mark.parametrize(
    ("mechanism", "gap", "before", "after"),
    [
        ("routing", 30, (5000, 4096), (5100, 0)),
        ("none", 30, (5000, 0), (5100, 4992)),
        ("none", 30, (5000, 4096), (5100, 4096)),
        ("ttl_expired", 7200, (5000, 4096), (5100, 0)),
        ("below_minimum", 30, (500, 0), (550, 0)),
    ],
)
def test_automatic_caches(provider: str, mechanism: str, gap: float, before: Any, after: Any) -> None:
    a = sent(body(provider, BASE), 0, usage(provider, *before))
    b = sent(body(provider, NEXT), gap, usage(provider, *after))
    # OpenAI's gpt-5 keeps prefixes for a day, so that two hours are a reason to doubt and not the end.
    assert explain(a, b, provider).mechanism == mechanism


@every_provider
def test_items_of_one_batch(provider: str) -> None:
    one, two = body(provider, [user("Classify item 1")]), body(provider, [user("Classify item 2")])
    assert explain(one, two, provider).mechanism == "none"
    cold = usage(provider, 5000, 0, 4990)
    assert explain(sent(one, 0, cold), sent(two, 0.2, cold), provider).mechanism == "cold_fanout"
