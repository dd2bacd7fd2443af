"""Mechanisms that show in the content, each in all four dialects; and what looks like one of them and is none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from longturn.explain import Verdict, explain
from tests.explain.build import (
    MORE,
    PROVIDERS,
    SYSTEM,
    TOOLS,
    TURNS,
    Turn,
    call,
    image,
    request,
    result,
    text,
    thought,
)

every_provider = pytest.mark.parametrize("provider", PROVIDERS)
STUB = "[old tool result pruned]"


def verdict(provider: str, a: dict[str, Any], b: dict[str, Any]) -> Verdict:
    return explain(body(provider, **a), body(provider, **b), provider)


def body(provider: str, turns: list[Turn] | None = None, **settings: Any) -> dict[str, Any]:
    return request(provider, turns, **settings)


def changed(turn: int, *blocks: Any, turns: list[Turn] = TURNS) -> list[Turn]:
    """The turns with the blocks of one replaced."""
    return [*turns[:turn], (turns[turn][0], *blocks), *turns[turn + 1 :]]


@every_provider
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Now: 2026-11-30 12:00:01", "Now: 2026-11-30 12:00:02"),
        ("Today is Monday, November 30, 2026.", "Today is Tuesday, 1 December 2026."),
        ("It is 9:58 PM.", "It is 10:04 AM."),
        ("Request 0c7b2f6e-8a2d-4f1b-9a43-1df0cbf0a6d4", "Request 5f3c1f9a-02c4-4f9e-b1a5-2a6b8f0e7c11"),
        ("Step 9 of 40, 8123 tokens left.", "Step 10 of 40, 7011 tokens left."),
        ("Working directory: /home/ann/one", "Working directory: /tmp/build-7/two"),
    ],
)
def test_volatile_text(provider: str, before: str, after: str) -> None:
    told = verdict(
        provider,
        {"system": f"{SYSTEM}\n{before}\nBe brief."},
        {"system": f"{SYSTEM}\n{after}\nBe brief.", "turns": TURNS + MORE},
    )
    assert told.mechanism == "volatile_text"
    assert told.first_divergence is not None
    assert told.first_divergence.segment == "system[0]"
    assert told.first_divergence.offset >= len(SYSTEM)
    assert told.lost_tokens > 100
    assert not told.append_only


@every_provider
def test_a_list_of_things_in_the_system_prompt_is_volatile_too(provider: str) -> None:
    told = verdict(
        provider, {"system": [SYSTEM, "Memory: likes tea, has a dog."]}, {"system": [SYSTEM, "Memory: hates rain."]}
    )
    assert told.mechanism == "volatile_text"
    assert told.confidence < 0.8


@every_provider
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x-acme-billing-header: version=2.1; cch=36ee5;", "x-acme-billing-header: version=2.1; cch=a01b7;"),
        ("[nonce: 8f3a2b91]", "[nonce: 77c1d0aa]"),
        ("trace=9be01f22", "trace=01ac93de"),
    ],
)
def test_client_nonce(provider: str, before: str, after: str) -> None:
    told = verdict(provider, {"system": f"{before}\n{SYSTEM}"}, {"system": f"{after}\n{SYSTEM}", "turns": TURNS + MORE})
    assert told.mechanism == "client_nonce"
    assert told.lost_tokens > 1000


@every_provider
@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_tools_reordered(provider: str, order: tuple[int, ...]) -> None:
    told = verdict(provider, {}, {"tools": [TOOLS[i] for i in order], "turns": TURNS + MORE})
    assert told.mechanism == "tools_reordered"
    assert told.first_divergence is not None
    assert told.first_divergence.segment.startswith("tools[")
    assert told.first_divergence.json_path.startswith("$.tools[")


@every_provider
def test_a_new_tool_is_a_changed_setting(provider: str) -> None:
    extra = {"name": "zip", "description": "Packs", "schema": {"type": "object"}}
    assert verdict(provider, {}, {"tools": [*TOOLS, extra]}).mechanism == "setting_changed"
    other = [*TOOLS[:2], {**TOOLS[2], "description": "Finds words in all files"}]
    assert verdict(provider, {}, {"tools": other}).mechanism == "setting_changed"


@every_provider
@pytest.mark.parametrize("where", ["schema", "arguments", "result", "required"])
def test_key_order(provider: str, where: str) -> None:
    tools, turns = copy.deepcopy(TOOLS), list(TURNS)
    before = list(TURNS)
    match where:
        case "schema":
            tools[1]["schema"] = dict(reversed(tools[1]["schema"].items()))
        case "arguments":
            turns = changed(1, TURNS[1][1], call("read", {"limit": 40, "path": "a.py"}))
        case "result":
            before = changed(2, result('{"size": 3, "name": "é"}'))
            turns = changed(2, result('{"name": "\\u00e9", "size": 3}'))
        case "required":
            tools[0]["schema"]["required"].reverse()
    told = verdict(provider, {"turns": before}, {"tools": tools, "turns": turns + MORE})
    assert told.mechanism == "key_order"


@every_provider
@pytest.mark.parametrize(
    ("turn", "blocks"),
    [
        (2, [result(STUB)]),
        (2, [result("def parse(lines):\n    return lines[:-1]\n[truncated]")]),
        (3, [text("I found it.")]),
        (0, [text("Look at the writer instead.")]),
    ],
)
def test_history_rewritten(provider: str, turn: int, blocks: list[Any]) -> None:
    told = verdict(provider, {}, {"turns": changed(turn, *blocks) + MORE})
    assert told.mechanism == "history_rewritten"
    assert not told.intentional
    assert told.first_divergence is not None
    assert told.first_divergence.segment.startswith("messages[")


@every_provider
@pytest.mark.parametrize(
    "summary",
    [
        "This session is being continued from a previous conversation. The user wants the parser mended.",
        "<summary>The parser drops the last line; the slice was found.</summary>",
        "Summary of the conversation so far: the parser drops the last line.",
    ],
)
def test_a_deliberate_compaction_is_labelled(provider: str, summary: str) -> None:
    told = verdict(provider, {}, {"turns": [("user", text(summary)), *MORE]})
    assert told.mechanism == "history_rewritten"
    assert told.intentional


@every_provider
def test_a_summary_in_place_of_one_result_is_no_compaction(provider: str) -> None:
    told = verdict(provider, {}, {"turns": changed(2, result("Summary of the file: a parser.")) + MORE})
    assert (told.mechanism, told.intentional) == ("history_rewritten", False)


def test_a_compaction_block_is_deliberate() -> None:
    block = {"type": "compaction", "content": "the parser drops a line"}
    b = request("anthropic", MORE[1:], mark=False)
    b["messages"].insert(0, {"role": "assistant", "content": [block]})
    assert explain(request("anthropic"), b, "anthropic").intentional
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "ZW5j"}
    c = request("openai", MORE)
    c["input"].insert(0, item)
    assert explain(request("openai"), c, "openai").intentional


@every_provider
@pytest.mark.parametrize("dropped", [1, 2, 3])
def test_sliding_window(provider: str, dropped: int) -> None:
    turns = [
        (role, text(f"{role} says in turn {'abcdefgh'[i]}: {'word ' * 30}"))
        for i in range(4)
        for role in ("user", "assistant")
    ]
    turns.append(TURNS[-1])
    told = verdict(provider, {"turns": turns}, {"turns": turns[dropped:] + MORE})
    assert told.mechanism == "sliding_window"
    kept_first = verdict(provider, {"turns": turns}, {"turns": turns[:1] + turns[2 + dropped :] + MORE})
    assert kept_first.mechanism == "sliding_window"


@every_provider
def test_numbered_messages_that_slide_are_no_counter(provider: str) -> None:
    turns = [
        (role, text(f"{word} {i}"))
        for i in range(1, 6)
        for role, word in (("user", "question"), ("assistant", "answer"))
    ]
    told = verdict(provider, {"turns": turns[:7]}, {"turns": turns[2:9]})
    assert told.mechanism == "sliding_window"
    told = verdict(provider, {"turns": turns[:7]}, {"turns": [*turns[:3], *turns[5:9]]})
    assert told.mechanism == "history_rewritten"
    told = verdict(provider, {"turns": turns[:7]}, {"turns": [*turns[:6], turns[8]]})
    assert told.mechanism == "none"


@every_provider
def test_context_that_hops_forward_has_moved(provider: str) -> None:
    context = ("user", text("The user works in Europe, on a Tuesday, in the parser."))
    told = verdict(provider, {"turns": [context, *TURNS]}, {"turns": [*TURNS, MORE[0], context, MORE[1]]})
    assert told.mechanism == "moved_segment"


@every_provider
def test_surroundings_told_in_the_first_message_are_volatile(provider: str) -> None:
    def opening(folder: str) -> list[Turn]:
        return changed(0, text(f"<env>cwd: {folder}</env>"), *TURNS[0][1:])

    told = verdict(provider, {"turns": opening("/home/ann/one")}, {"turns": opening("/tmp/two/three") + MORE})
    assert told.mechanism == "volatile_text"


@every_provider
def test_a_stub_in_the_last_message_is_a_rewrite(provider: str) -> None:
    told = verdict(provider, {}, {"turns": changed(4, text("[message pruned]"))})
    assert told.mechanism == "history_rewritten"


@every_provider
def test_a_question_about_a_summary_is_no_compaction(provider: str) -> None:
    told = verdict(provider, {}, {"turns": changed(4, text("Write a summary of the parser."))})
    assert told.mechanism == "none"


def test_a_result_without_error_is_the_same_when_it_says_so() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    b["messages"][2]["content"][0]["is_error"] = False
    assert explain(a, b, "anthropic").mechanism == "none"
    b["messages"][2]["content"][0]["is_error"] = True
    assert explain(a, b, "anthropic").mechanism == "history_rewritten"


def test_emptied_reasoning_is_stripped() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    b["messages"][1]["content"][0]["thinking"] = ""
    assert explain(a, b, "anthropic").mechanism == "thinking_stripped"


@every_provider
@pytest.mark.parametrize("way", ["block", "inside", "dropped", "renewed"])
def test_moved_segment(provider: str, way: str) -> None:
    reminder = "<reminder>The todo list is empty. Use the tool to fill it.</reminder>"
    question, last = TURNS[-1][1], MORE[-1][1]
    asked: list[Any] = [question, text(reminder)]
    answered: list[Any] = [last, text(reminder)]
    if way == "inside":
        asked, answered = [text(f"{question['text']}\n{reminder}")], [text(f"{last['text']}\n{reminder}")]
    elif way == "dropped":
        answered = [last]
    elif way == "renewed":
        answered = [last, text("<reminder>There are two open todos.</reminder>")]
    told = verdict(
        provider,
        {"turns": changed(4, *asked)},
        {"turns": [*TURNS, MORE[0], ("user", *answered)]},
    )
    assert told.mechanism == "moved_segment"


@every_provider
@pytest.mark.parametrize("way", ["encoded", "dropped", "stub"])
def test_image_changed(provider: str, way: str) -> None:
    shot, words = image("iVBORw0KGgoAAA"), text("What is wrong on this screen?")
    after: list[Any] = {
        "encoded": [image("iVBORw0KGgoBBB"), words],
        "dropped": [words],
        "stub": [text("[image removed]"), words],
    }[way]
    before = changed(0, shot, words)
    told = verdict(provider, {"turns": before}, {"turns": changed(0, *after) + MORE})
    assert told.mechanism == "image_changed"


@every_provider
def test_an_image_that_is_attached_again_has_moved(provider: str) -> None:
    shot = image("iVBORw0KGgoAAA")
    before = changed(0, shot, text("What is wrong on this screen?"))
    after = [*changed(0, text("What is wrong on this screen?")), MORE[0], ("user", shot, MORE[1][1])]
    assert verdict(provider, {"turns": before}, {"turns": after}).mechanism == "moved_segment"


@every_provider
@pytest.mark.parametrize("way", ["one", "all", "with text"])
def test_thinking_stripped(provider: str, way: str) -> None:
    before = list(TURNS)
    after = changed(1, *TURNS[1][2:])
    if way == "all":
        before = changed(3, thought("It is the slice."), *TURNS[3][1:])
    elif way == "with text":
        before = changed(1, thought("Read it."), text("I read it."), TURNS[1][2])
        after = changed(1, text("I read it."), TURNS[1][2])
    assert verdict(provider, {"turns": before}, {"turns": after + MORE}).mechanism == "thinking_stripped"


def test_a_lost_signature_is_stripped_thinking() -> None:
    def signed(**extra: str) -> dict[str, Any]:
        made = request("gemini", TURNS + MORE)
        made["contents"][3]["parts"][0] |= extra
        return made

    assert explain(signed(thoughtSignature="c2ln"), signed(), "gemini").mechanism == "thinking_stripped"
    a, b = request("openai"), request("openai", TURNS + MORE)
    del b["input"][1]["encrypted_content"]
    assert explain(a, b, "openai").mechanism == "thinking_stripped"


@every_provider
@pytest.mark.parametrize(
    ("before", "after"), [("Done. ", "Done."), ("Two\n\nparts", "Two\nparts"), ("\n One  space", "One space")]
)
def test_whitespace(provider: str, before: str, after: str) -> None:
    told = verdict(provider, {"turns": changed(3, text(before))}, {"turns": changed(3, text(after)) + MORE})
    assert told.mechanism == "whitespace"


def test_white_space_as_reasoning_is_white_space() -> None:
    a = request("openai-chat", changed(3, thought(" "), *TURNS[3][1:]))
    b = request("openai-chat", TURNS + MORE)
    assert explain(a, b, "openai-chat").mechanism == "whitespace"
    assert explain(b, {**b, "messages": [*a["messages"], *b["messages"][-2:]]}, "openai-chat").mechanism == "whitespace"


@every_provider
@pytest.mark.parametrize("addition", ["\nAnd the docs, too.", " Quickly please", "\n\n<note>one more thing</note>"])
def test_message_grew(provider: str, addition: str) -> None:
    grown = changed(4, text(TURNS[4][1]["text"] + addition))
    assert verdict(provider, {}, {"turns": grown}).mechanism == "message_grew"
    assert verdict(provider, {}, {"turns": grown + MORE}).mechanism == "message_grew"


@pytest.mark.parametrize("provider", ["openai", "openai-chat"])
def test_a_part_that_is_added_moves_the_end_of_a_message(provider: str) -> None:
    told = verdict(provider, {}, {"turns": changed(4, *TURNS[4][1:], text("One more thing.")) + MORE})
    assert told.mechanism == "message_grew"
    assert not told.append_only


# What must not be flagged.


@every_provider
def test_appending_is_fine(provider: str) -> None:
    told = verdict(provider, {}, {"turns": TURNS + MORE})
    assert told.mechanism == "none"
    assert told.first_divergence is None
    assert told.append_only
    assert told.lost_tokens == 0


@every_provider
def test_the_same_request_again_is_fine(provider: str) -> None:
    assert verdict(provider, {}, {}).mechanism == "none"


@every_provider
def test_neutral_parameters_are_neutral(provider: str) -> None:
    settings: dict[str, Any] = {"max_tokens": 1, "temperature": 0.1, "stream": False, "metadata": {"user_id": "a"}}
    other: dict[str, Any] = {"max_tokens": 9, "temperature": 0.9, "stream": True, "metadata": {"user_id": "b"}}
    if provider == "gemini":
        settings = {"generationConfig": {"maxOutputTokens": 1, "temperature": 0.1, "seed": 1}}
        other = {"generationConfig": {"maxOutputTokens": 9, "temperature": 0.9, "topP": 0.5}}
    assert verdict(provider, settings, {"turns": TURNS + MORE, **other}).mechanism == "none"


def test_a_moved_mark_is_no_change() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    del b["system"][0]["cache_control"]
    b["tools"][2]["cache_control"] = {"type": "ephemeral"}
    told = explain(a, b, "anthropic")
    assert (told.mechanism, told.append_only) == ("none", True)


def test_a_string_is_a_block_of_text() -> None:
    long = "a long text. " * 500
    mark = {"type": "ephemeral"}
    a = {"system": long, "messages": [{"role": "user", "content": "Hello"}], "cache_control": mark}
    b = {
        "system": [{"type": "text", "text": long}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "How are you?"},
        ],
        "cache_control": mark,
    }
    assert explain(a, b, "anthropic").mechanism == "none"
    chat = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert explain({"messages": chat[0]}, {"messages": chat[1]}, "openai-chat").mechanism == "none"
    items = "Hello", [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    assert explain({"input": items[0]}, {"input": items[1]}, "openai").mechanism == "none"


def test_a_result_as_string_is_a_result_as_block() -> None:
    a, b = request("anthropic"), request("anthropic", TURNS + MORE)
    block = b["messages"][2]["content"][0]
    block["content"] = [{"type": "text", "text": block["content"]}]
    assert explain(a, b, "anthropic").mechanism == "none"


@every_provider
def test_another_question_over_the_same_prefix_is_fine(provider: str) -> None:
    told = verdict(provider, {}, {"turns": changed(4, text("Or rather explain the writer to me."))})
    assert told.mechanism == "none"


def test_a_clock_behind_the_last_mark_is_fine() -> None:
    def asked(clock: str) -> dict[str, Any]:
        made = request("anthropic", changed(4, text(f"It is {clock}. Mend it.")), mark=False)
        made["system"][0]["cache_control"] = {"type": "ephemeral"}
        return made

    assert explain(asked("12:00:01"), asked("12:00:09"), "anthropic").mechanism == "none"


@every_provider
def test_taking_back_the_last_turn_is_fine(provider: str) -> None:
    assert verdict(provider, {"turns": TURNS + MORE}, {}).mechanism == "none"
