"""Claude Code's logs."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from longturn.conversation.entries import Edited, Said
from longturn.conversation.history import History, Whole
from longturn.conversation.importing.formats import read_sessions
from longturn.conversation.parts import File, Reasoning, ToolResult, Unknown
from longturn.errors import ImportFailed
from tests.conversation.importing.seen import seen


def entry(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | more.pop("message", {})
    base = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "0a1b-session"}
    return base | {"timestamp": f"2026-01-01T10:00:0{uuid[0]}Z", "message": message} | more


def answer(uuid: str, parent: str, call: str, *content: dict[str, Any] | str, output: int = 2) -> dict[str, Any]:
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 195,
        "cache_creation_input_tokens": 7,
        "output_tokens": output,
    }
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    return entry("assistant", uuid, parent, blocks, message={"id": call, "model": "claude-x", "usage": usage})


def use(call: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "Read", "input": given}


def result(call: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content} | more


def load(path: Path, *lines: dict[str, Any] | str, **how: Any) -> list[Whole]:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()))
    return read_sessions(path, lambda data: f"digest of {len(data)}", **how)


def test_calls_are_put_together_and_counted(path: Path) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s1"}
    [whole] = load(
        path,
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        entry("user", "1", None, "go\nnow"),
        answer("2", "1", "msg1", thought),
        answer("3", "2", "msg1", "reading", use("c1", file_path="a.py")),
        entry("user", "4", "3", [result("c1", [{"type": "text", "text": "rows"}, "more"], is_error=True)]),
        answer("5", "4", "msg1", use("c2", url="http://b"), output=9),
        entry("user", "6", "5", [result("c2", "page"), {"type": "text", "text": "hurry"}]),
        {"type": "system", "uuid": "7", "parentUuid": "6", "sessionId": "0a1b-session", "subtype": "turn_duration"},
        answer("8", "6", "msg2", "done"),
    )
    assert seen(whole.log) == [
        "user: go\nnow",
        'assistant: (hm)reading Read{"file_path":"a.py"} Read{"url":"http://b"}',
        "tool: rows\nmore",
        "tool: page",
        "user: hurry",
        "assistant: done",
    ]
    assert (whole.title, whole.model, whole.id, whole.created) == ("go", "claude-x", "0a1b-session", 1767261601.0)
    said = [each.message for each in whole.log if isinstance(each, Said)]
    assert said[1].parts[0] == Reasoning("hm", {"anthropic": thought})
    assert said[2].parts == (ToolResult("c1", "rows\nmore", "a.py", error=True),)
    assert (said[1].id, said[1].model, said[1].time) == ("msg1", "claude-x", 1767261602.0)
    first, second = whole.requests
    assert [made.entries for made in (first, second)] == [2, 6]
    used = first.line.use
    assert (used.logical, dict(used.cached), used.computed, used.written, used.output) == (
        207,
        {"provider": 195},
        12,
        7,
        9,
    )


def test_a_summary_takes_the_place_of_what_is_before(path: Path) -> None:
    [whole] = load(
        path,
        entry("user", "1", None, "go"),
        answer("2", "1", "msg1", "long work"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "3", "sessionId": "0a1b-session"},
        entry("user", "4", "3", "what was done", isCompactSummary=True),
        answer("5", "4", "msg2", "more work"),
    )
    assert seen(whole.log) == ["user: what was done", "assistant: more work"]
    assert [type(each) for each in whole.log] == [Said, Said, Edited, Said]


def test_without_a_summary_what_is_before_is_just_not_sent(path: Path) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "3", "sessionId": "0a1b-session"}
    [whole] = load(path, entry("user", "1", None, "go"), boundary, entry("user", "4", "3", "anew"))
    assert seen(whole.log) == ["user: anew"]
    [resumed] = load(path, boundary, entry("user", "4", "3", "what was done", isCompactSummary=True))
    assert seen(resumed.log) == ["user: what was done"]


def test_a_compaction_waits_for_something_to_send(path: Path) -> None:
    [whole] = load(
        path,
        entry("user", "1", None, "go"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "2", "sessionId": "0a1b-session"},
        entry("user", "3", "2", [result("gone", "of a call that is not there")]),
        entry("assistant", "4", "3", [{"type": "text", "text": "overloaded"}], isApiErrorMessage=True),
        entry("user", "5", "4", "anew"),
    )
    assert seen(whole.log) == ["user: anew"]


@pytest.mark.parametrize(
    ("content", "told"), [(None, ""), (7, "7"), ([True, "a"], "true\na"), ([{"type": "text"}], "")]
)
def test_results_of_any_form_are_text(path: Path, content: Any, told: str) -> None:
    [whole] = load(path, entry("assistant", "1", None, [use("c1")]), entry("user", "2", "1", [result("c1", content)]))
    assert seen(whole.log)[1] == f"tool: {told}"


def test_an_abandoned_way_is_a_branch(path: Path) -> None:
    wholes = load(
        path,
        entry("user", "1", None, "go"),
        answer("2", "1", "msg1", "one"),
        entry("user", "3", "2", "wrong way"),
        answer("4", "3", "msg2", "two"),
        entry("user", "5", "4", "further"),
        answer("6", "5", "msg3", "three"),
        entry("user", "7", "4", "astray"),
        answer("8", "7", "msg4", "four"),
        entry("user", "9", "2", "right way"),
        answer("9b", "9", "msg5", "five"),
    )
    with History.open(path.with_name("other.db")) as history:
        main = history.add(wholes[0])
        views = {info.id: seen(history.session(info.id).entries()) for info in history.sessions()}
        assert views.pop(main.id) == ["user: go", "assistant: one", "user: right way", "assistant: five"]
        assert sorted(view[2:] for view in views.values()) == [
            ["user: wrong way", "assistant: two", "user: astray", "assistant: four"],
            ["user: wrong way", "assistant: two", "user: further", "assistant: three"],
        ]
        assert {info.title for info in history.sessions()} == {"go"}
        sessions = [history.session(info.id) for info in history.sessions()]
        assert sorted(line.request_id for each in sessions for line in each.lines()) == [f"msg{n}" for n in range(1, 6)]
        assert [made.line.request_id for made in main.requests()] == ["msg1", "msg5"]


def test_sub_agents_are_sessions_of_their_own(path: Path) -> None:
    main, helper = load(
        path,
        entry("user", "1", None, "go"),
        entry("user", "2", None, "help", isSidechain=True),
        entry("assistant", "3", "2", "found", isSidechain=True),
        answer("4", "1", "msg1", "done"),
    )
    assert seen(main.log) == ["user: go", "assistant: done"]
    assert seen(helper.log) == ["user: help", "assistant: found"]
    assert (helper.title, helper.id) == ("help (sub-agent)", None)


def test_pictures_are_kept_and_what_is_unknown_too(path: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"12345").decode()}
    picture, odd = {"type": "image", "source": source}, {"type": "hologram", "depth": 3}
    broken = {"type": "image", "source": source | {"data": "???"}}
    [whole] = load(
        path,
        entry("user", "1", None, [picture, odd, broken, "see"], isMeta=True),
        answer("2", "1", "msg1", use("c1"), odd),
        entry("user", "3", "2", [result("c1", [picture, {"type": "text", "text": "seen"}])]),
        entry("assistant", "4", "3", [{"type": "text", "text": "overloaded"}], isApiErrorMessage=True),
    )
    said = [each.message for each in whole.log if isinstance(each, Said)]
    file = File("image", "image/png", "digest of 5", 5)
    assert said[0].parts[:3] == (file, Unknown(odd), Unknown(broken))
    assert said[1].parts[1] == Unknown(odd)
    assert seen(whole.log) == ["user: see|<file>", "assistant:  Read{}", "tool: seen", "user: <file>"]
    assert isinstance(said[-1].parts[0], Unknown)


def test_malformed_lines_are_named_or_left_out(path: Path) -> None:
    lines = [entry("user", "1", None, "go"), '{"type": "user"}', entry("user", "2", "1", "on")]
    with pytest.raises(ImportFailed, match=r"line 2: .*`message`.* --skip-bad"):
        load(path, *lines)
    [whole] = load(path, *lines, skip_bad=True)
    assert seen(whole.log) == ["user: go", "user: on"]
