"""What is sent, message for message."""

from __future__ import annotations

import json

from longturn.conversation.edits.prune import PLACEHOLDER, Prune
from longturn.conversation.parts import File, Reasoning, Signal, Text, ToolCall, ToolResult, Tools, Unknown
from longturn.conversation.view.fold import fold
from longturn.conversation.view.items import INTERRUPTED
from longturn.conversation.view.render import render
from tests.conversation.talk import Talk, tool


def test_a_turn_with_tools() -> None:
    talk = Talk(tools=["read", "bash"])
    talk.user("What is in a?")
    talk.say("assistant", Reasoning("hm", {"sig": 1}), Text("I look."), ToolCall("c1", "read", '{"path": "a"}'))
    talk.result("c1", "hello", "a")
    talk.assistant("It says hello.")
    rendered = render(fold(talk.entries))
    assert [definition["function"]["name"] for definition in rendered.tools] == ["bash", "read"]
    assert rendered.messages == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "What is in a?"},
        {
            "role": "assistant",
            "reasoning": [{"text": "hm", "data": {"sig": 1}}],
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "hello"},
        {"role": "assistant", "content": "It says hello."},
    ]
    assert [json.loads(line) for line in rendered.data.splitlines()] == [rendered.tools, *rendered.messages]


def test_files_hints_and_unknown_parts() -> None:
    talk = Talk()
    talk.say("user", Text("See"), File("a.png", "image/png", "ab" * 32, 10), Unknown({"kind": "video"}))
    talk.say("assistant", Signal("pin"))
    user = render(fold(talk.entries)).messages[1:]
    assert user == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                {"type": "file", "file": {"name": "a.png", "media_type": "image/png", "digest": "ab" * 32, "size": 10}},
            ],
        }
    ]


def test_a_call_without_result_gets_one_that_stays() -> None:
    talk = Talk()
    talk.user("Do both")
    first, second = talk.call("read", "bash")
    talk.result(first, "one")
    talk.user("Stop, never mind")
    before = render(fold(talk.entries))
    assert before.messages[-3:] == [
        {"role": "tool", "tool_call_id": first, "content": "one"},
        {"role": "tool", "tool_call_id": second, "content": INTERRUPTED},
        {"role": "user", "content": "Stop, never mind"},
    ]
    talk.result(second, "too late")
    talk.assistant("Stopped.")
    after = render(fold(talk.entries))
    assert after.extends(before)
    assert "too late" not in after.data.decode()


def test_call_ids_may_come_again() -> None:
    talk = Talk()
    for turn in range(2):
        talk.user(f"turn {turn}")
        talk.say("assistant", ToolCall("call_0", "read", "{}"))
        talk.say("tool", ToolResult("call_0", f"result {turn}"))
    results = [m["content"] for m in render(fold(talk.entries)).messages if m["role"] == "tool"]
    assert results == ["result 0", "result 1"]


def test_pruned_results_and_the_epoch() -> None:
    talk = Talk()
    talk.user("go")
    seq = talk.read("a", "x" * 1000)
    talk.assistant("done")
    before = fold(talk.entries)
    edited = talk.edit(Prune(((seq, 0),)), reason="old results")
    after = fold(talk.entries[-1:], onto=before)
    assert [m["content"] for m in render(after).messages if m["role"] == "tool"] == [PLACEHOLDER]
    assert [m["content"] for m in render(before).messages if m["role"] == "tool"] == ["x" * 1000]
    assert [(epoch.number, epoch.seq, epoch.reason) for epoch in after.epochs[1:]] == [(1, edited, "old results")]
    assert after.tokens < before.tokens


def test_tools_change_only_with_an_epoch() -> None:
    talk = Talk(tools=["bash"])
    talk.user("hi")
    before = fold(talk.entries)
    first = render(before)
    talk.say("system", Text("There is a new tool soon."), Tools((tool("grep"),)))
    later = fold(talk.entries[-1:], onto=before)
    assert render(later).extends(first)
    talk.edit(reason="tools changed")
    newest = fold(talk.entries[-1:], onto=later)
    assert [definition["function"]["name"] for definition in render(newest).tools] == ["grep"]
    assert render(newest).messages == render(later).messages
    assert newest.epoch.reason == "tools changed"
    assert render(fold(talk.entries)).data == render(newest).data
