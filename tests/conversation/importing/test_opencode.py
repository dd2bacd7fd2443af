"""opencode's exports."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from longturn.conversation.entries import Said
from longturn.conversation.history import Whole
from longturn.conversation.importing.formats import read_sessions
from longturn.conversation.parts import File, Message, Text, ToolResult, Unknown
from longturn.errors import ImportFailed
from tests.conversation.importing.seen import seen

TOKENS = {"input": 90, "output": 3, "reasoning": 1, "cache": {"read": 10, "write": 5}}


def part(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"prt_{kind}"} | more


def user(id: str, created: int, *parts: dict[str, Any] | str) -> dict[str, Any]:
    return {"info": {"id": id, "role": "user", "time": {"created": created}}, "parts": worded(parts)}


def assistant(id: str, parent: str, created: int, *parts: dict[str, Any] | str, **info: Any) -> dict[str, Any]:
    base = {"id": id, "role": "assistant", "parentID": parent, "finish": "stop", "modelID": "big"}
    steps = [part("step-start", snapshot="abc"), *worded(parts), part("step-finish", tokens=TOKENS)]
    return {"info": base | {"time": {"created": created}} | info, "parts": steps}


def worded(parts: tuple[dict[str, Any] | str, ...]) -> list[dict[str, Any]]:
    return [part("text", text=each) if isinstance(each, str) else each for each in parts]


def tool(call: str, output: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    time = {"start": 1, "end": 2} | more.pop("time", {})
    state = {"status": status, "input": {"filePath": f"{call}.py"}, "output": output, "time": time} | more
    return part("tool", callID=call, tool="read", state=state)


def load(path: Path, *messages: dict[str, Any], indent: int | None = 2) -> Whole:
    info = {"id": "ses_1", "title": "a title", "time": {"created": 500}}
    path.write_text(json.dumps({"info": info, "messages": messages}, indent=indent))
    [whole] = read_sessions(path, lambda data: f"digest of {len(data)}")
    return whole


def messages(whole: Whole) -> list[Message]:
    return [entry.message for entry in whole.log if isinstance(entry, Said)]


@pytest.mark.parametrize("indent", [None, 2])
def test_each_step_is_a_message(path: Path, indent: int | None) -> None:
    two_steps = assistant(
        "m2", "m1", 1500, part("reasoning", text="hm"), tool("c1", "rows"), tool("c2", "", "error", error="no")
    )
    two_steps["parts"] += assistant("m2", "m1", 1500, tool("c3", "", "running"), "done")["parts"]
    whole = load(path, user("m1", 1000, "go", part("text", text="unseen", ignored=True)), two_steps, indent=indent)
    assert seen(whole.log) == [
        "user: go",
        'assistant: (hm) read{"filePath":"c1.py"} read{"filePath":"c2.py"}',
        "tool: rows",
        "tool: no",
        'assistant: done read{"filePath":"c3.py"}',
        "tool: [Tool execution was interrupted]",
    ]
    assert (whole.title, whole.model, whole.id, whole.created) == ("a title", "big", "ses_1", 0.5)
    said = messages(whole)
    assert said[2].parts[1] == ToolResult("c2", "no", "c2.py", error=True)
    assert [message.id for message in said] == ["m1", "m2", "m2/results", "m2/2", "m2/2/results"]
    assert said[0].time == 1.0
    assert [made.entries for made in whole.requests] == [2, 4]
    used = whole.requests[0].line.use
    assert (used.logical, dict(used.cached), used.computed, used.written) == (105, {"provider": 10}, 95, 5)
    assert (used.output, used.reasoning) == (4, 1)


def test_a_summary_and_a_tail_are_sent_as_opencode_does(path: Path) -> None:
    whole = load(
        path,
        user("m1", 1000, "old"),
        assistant("m2", "m1", 1500, "old answer"),
        user("m3", 3000, "kept"),
        assistant("m4", "m3", 3500, "kept answer"),
        user("m5", 5000, part("compaction", auto=True, tail_start_id="m3")),
        assistant("m6", "m5", 5500, "the summary", summary=True),
        user("m7", 7000, "go on"),
        assistant("m8", "m7", 7500, "ok"),
        user("m9", 8000, part("compaction", auto=True)),
        assistant("ma", "m9", 8500, "not finished", summary=True, finish=None),
    )
    assert seen(whole.log) == [
        "user: What did we do so far?",
        "assistant: the summary",
        "user: kept",
        "assistant: kept answer",
        "user: go on",
        "assistant: ok",
    ]
    assert [made.line.purpose for made in whole.requests] == ["turn", "turn", "summary", "turn"]
    more = user("m9", 9000, part("compaction", auto=False)), assistant("ma", "m9", 9500, "another", summary=True)
    messages_of = json.loads(path.read_text())["messages"][:8]
    assert seen(load(path, *messages_of, *more).log) == ["user: What did we do so far?", "assistant: another"]


def test_results_are_pruned_from_then_on(path: Path) -> None:
    whole = load(
        path,
        user("m1", 1000, "go"),
        assistant("m2", "m1", 1500, tool("c1", "many rows", time={"compacted": 6000}), tool("c2", "few")),
        user("m3", 7000, "next"),
    )
    cleared = "tool: [Old tool result content cleared]"
    assert seen(whole.log)[2:] == [cleared, "tool: few", "user: next"]
    assert seen(whole.log[:3])[2:] == ["tool: many rows", "tool: few"]


def test_a_result_that_is_summed_up_is_not_pruned_any_more(path: Path) -> None:
    whole = load(
        path,
        user("m1", 1000, "go"),
        assistant("m2", "m1", 1500, tool("c1", "many rows", time={"compacted": 6000})),
        user("m3", 3000, part("compaction", auto=True)),
        assistant("m4", "m3", 3500, "the summary", summary=True),
        user("m5", 7000, "next"),
    )
    assert seen(whole.log) == ["user: What did we do so far?", "assistant: the summary", "user: next"]


def test_what_was_never_sent_is_kept_all_the_same(path: Path) -> None:
    picture = f"data:image/png;base64,{base64.b64encode(b'12345').decode()}"
    odd, listing = part("subtask", prompt="look"), part("file", mime="text/plain", url="file:///a")
    whole = load(
        path,
        user("m1", 1000, "go", part("file", mime="image/png", url=picture, filename="a.png"), odd, listing),
        assistant("m2", "m1", 1500, "half", error={"name": "APIError"}),
        assistant("m3", "m1", 1600, "stopped", error={"name": "MessageAbortedError"}),
        assistant("m4", "m1", 1700, tool("c1", "seen", attachments=[{"mime": "image/png", "url": picture}]), odd),
    )
    said = messages(whole)
    assert said[0].parts == (Text("go"), File("a.png", "image/png", "digest of 5", 5), Unknown(odd), Unknown(listing))
    assert isinstance(said[1].parts[0], Unknown)
    assert said[1].parts[0].data["parts"][0]["text"] == "half"
    assert said[3].parts[1] == Unknown(odd)
    assert seen(whole.log)[1:] == [
        "assistant: stopped",
        'assistant:  read{"filePath":"c1.py"}',
        "tool: seen",
        "user: <file>",
    ]


def test_a_file_that_is_no_export(path: Path) -> None:
    path.write_text('{"info": {"id": "x"},\n "messages": 3}')
    with pytest.raises(ImportFailed, match=r"messages"):
        read_sessions(path, str)
