"""Readers of traces that hold text: which prompts they rebuild."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longturn.lab.trace import TraceRequest, open_trace
from longturn.lab.trace.text import Texts, pseudo_tokens
from tests.lab.trace import files
from tests.lab.trace.files import goes_on, output_ids, prompt_ids


def requests(path: Path, **options: Any) -> list[TraceRequest]:
    return list(open_trace(path, **options))


def letters(text: str) -> list[int]:
    """A tokenizer that can be read back."""
    return [ord(letter) for letter in text]


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("written", "n_tokens"),
    [
        ("The quick brown fox jumps over the lazy dog.", 10),
        ("internationalization", 3),
        ("2026-01-31", 7),
        ("你好世界", 4),
        ('{"key": [1, 22, 333]}', 13),
        ("a\n\n\n  b", 3),
        ("", 0),
    ],
)
def test_text_has_about_as_many_tokens_as_a_tokenizer_makes(written: str, n_tokens: int) -> None:
    tokens = pseudo_tokens(written)
    assert len(tokens) == pytest.approx(n_tokens, abs=2)
    assert tokens == pseudo_tokens(written)
    assert all(0 <= token < 2**31 for token in tokens)


def test_every_character_counts() -> None:
    written = "Änderung: 5 €/m²\t\x00 \u200b😀 ok"
    assert len({tuple(pseudo_tokens(written[:n])) for n in range(len(written) + 1)}) == len(written) + 1


def test_equal_text_gives_equal_blocks() -> None:
    texts = Texts()
    assert texts.message("user", texts.blocks("hello")) == Texts().message("user", texts.blocks("hello"))
    assert texts.message("user", texts.blocks("hello")) != texts.message("tool", texts.blocks("hello"))


def test_tau_bench_asks_at_every_answer(tmp_path: Path) -> None:
    call = {"function": {"name": "find", "arguments": '{"x":1}'}, "id": "c", "type": "function"}
    trajectory = {
        "task_id": 3,
        "trial": 1,
        "traj": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Find it."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "name": "find", "tool_call_id": "c", "content": "found"},
            {"role": "assistant", "content": "Here."},
            {"role": "user", "content": "Bye."},
        ],
    }
    path = files.write_json(tmp_path / "file", [trajectory, trajectory | {"trial": 2}])
    read = requests(path, tokenize=letters)
    assert [request.session for request in read] == ["3/1", "3/1", "3/2", "3/2"]
    assert [request.time for request in read] == [0, 0, 0, 0]
    assert [request.think for request in read] == [None] * 4
    assert goes_on(read[0], read[1])
    assert read[0].prompt == read[2].prompt
    assert text(output_ids(read[0])) == '\nfind{"x":1}<|end|>\n'
    assert text(prompt_ids(read[1])).endswith("<|tool find|>\nfound<|end|>\n<|assistant|>\n")


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_chat_log_of_requests(tmp_path: Path) -> None:
    hello, hi, more = said("user", "hello"), said("assistant", "hi"), said("user", "more")
    lines = [
        {"id": "x", "timestamp": "2026-01-01T00:00:10Z", "messages": [hello], "usage": {"completion_tokens": 50}},
        {"id": "y", "timestamp": "2026-01-01T00:00:12Z", "messages": [said("user", "other")], "session": "own"},
        {
            "id": "z",
            "timestamp": "2026-01-01T00:00:15Z",
            "messages": [hello, hi, more],
            "response": {"choices": [{"message": said("assistant", "done")}], "usage": {"completion_tokens": 1}},
        },
    ]
    first, other, last = requests(files.write_lines(tmp_path / "file", lines), tokenize=letters)
    assert [request.id for request in (first, other, last)] == ["x", "y", "z"]
    assert [request.session for request in (first, other, last)] == ["x", "own", "x"]
    assert [request.time for request in (first, other, last)] == [0, 2, 5]
    assert goes_on(first, last)
    assert text(output_ids(first)) == "hi<|end|>\n"
    assert first.output_tokens == 50
    assert text(output_ids(last)) == "done<|end|>\n"
    assert (other.output, other.output_tokens) == (None, 0)


def test_chat_log_of_conversations(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    line = {
        "t": 7,
        "messages": [
            said("user", [{"type": "text", "text": "look"}, image]),
            said("assistant", "one"),
            said("user", "and"),
            said("assistant", "two"),
        ],
    }
    first, second = requests(files.write_lines(tmp_path / "file", [line, files.CHAT]), tokenize=letters)[:2]
    assert goes_on(first, second)
    assert first.session == second.session == "1"
    assert first.prompt_tokens == len("<|user|>\nlook<|end|>\n<|assistant|>\n") + 1500


def test_chat_log_tools_stand_before_the_messages(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "find"}}
    plain, armed = requests(files.write_lines(tmp_path / "file", [files.CHAT, files.CHAT | {"tools": [tool]}]))
    assert plain.session != armed.session
    assert plain.prompt.shared_with(armed.prompt) < 4
    assert armed.prompt_tokens > plain.prompt_tokens


def claude(kind: str, uuid: str, parent: str | None, second: int, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | more.pop("message", {})
    time = f"2026-01-01T10:{second // 60:02}:{second % 60:02}.000Z"
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": "s",
        "timestamp": time,
        "message": message,
    } | more


def answer(uuid: str, parent: str, second: int, call: str, content: str, **more: Any) -> dict[str, Any]:
    reported = {"usage": {"input_tokens": 5, "cache_read_input_tokens": 195, "output_tokens": 2}}
    parts = [{"type": "text", "text": content}]
    return claude("assistant", uuid, parent, second, parts, message={"id": call} | reported, **more)


def test_claude_code_calls_are_put_together(tmp_path: Path) -> None:
    result = [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "rows"}]}]
    lines = [
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        claude("user", "1", None, 0, "go"),
        answer("2", "1", 3, "call 1", "think"),
        answer("3", "2", 4, "call 1", "act"),
        claude("user", "4", "3", 6, result),
        answer("5", "4", 9, "call 2", "done"),
        {"type": "system", "uuid": "6", "parentUuid": "5", "sessionId": "s", "subtype": "turn_duration"},
        claude("user", "7", "6", 20, "next"),
        answer("8", "7", 22, "call 3", "ok"),
    ]
    first, second, third = requests(files.write_lines(tmp_path / "file", lines), tokenize=letters)
    assert [request.time for request in (first, second, third)] == [0, 6, 20]
    assert [request.think for request in (first, second, third)] == [None, 2, 11]
    assert first.prompt_tokens == 200
    assert text(prompt_ids(first)[-28:]) == "user|>\ngo<|end|>\n<|assistant|>\n"[-28:]
    assert text(output_ids(first)) == "thinkact<|end|>\n"
    assert goes_on(first, second)
    assert goes_on(second, third)
    assert first.label == "line 3"


def test_claude_code_starts_anew_after_compaction(tmp_path: Path) -> None:
    lines = [
        claude("user", "1", None, 0, "go"),
        answer("2", "1", 3, "call 1", "long work"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "3", "parentUuid": None, "sessionId": "s"},
        claude("user", "4", "3", 6, "summary", isCompactSummary=True),
        answer("5", "4", 9, "call 2", "done"),
    ]
    first, second = requests(files.write_lines(tmp_path / "file", lines), tokenize=letters)
    known = "<|user|>\nsummary<|end|>\n<|assistant|>\n"
    assert second.prompt_tokens == 200
    assert text(prompt_ids(second)[-len(known) :]) == known
    assert second.prompt.shared_with(first.prompt) == 200 - len(known)


def test_claude_code_goes_back_to_an_earlier_message(tmp_path: Path) -> None:
    lines = [
        claude("user", "1", None, 0, "go"),
        answer("2", "1", 3, "call 1", "one"),
        claude("user", "3", "2", 4, "wrong way"),
        answer("4", "3", 5, "call 2", "two"),
        claude("user", "5", "2", 8, "right way"),
        answer("6", "5", 9, "call 3", "three"),
    ]
    first, wrong, right = requests(files.write_lines(tmp_path / "file", lines), tokenize=letters)
    assert goes_on(first, wrong)
    assert goes_on(first, right)
    n_both = first.prompt_tokens + len(output_ids(first))
    assert text(prompt_ids(right)[n_both:]) == "<|user|>\nright way<|end|>\n<|assistant|>\n"


@pytest.mark.parametrize("agent_id", [{"agentId": "helper"}, {}])
def test_claude_code_side_chains_have_their_own_history(tmp_path: Path, agent_id: dict[str, str]) -> None:
    side: dict[str, Any] = {"isSidechain": True} | agent_id
    lines = [
        claude("user", "1", None, 0, "go"),
        answer("2", "1", 3, "call 1", "ask a helper"),
        claude("user", "3", None, 4, "help", **side),
        answer("4", "3", 5, "call 2", "looking", **side),
        claude("user", "5", "4", 6, [{"type": "tool_result", "content": "x"}], **side),
        answer("6", "5", 7, "call 3", "found", **side),
        claude("user", "7", "2", 8, [{"type": "tool_result", "content": "found"}]),
        answer("8", "7", 9, "call 4", "done"),
    ]
    main, helped, helped_more, last = requests(files.write_lines(tmp_path / "file", lines), tokenize=letters)
    assert [request.time for request in (main, helped, helped_more, last)] == [0, 4, 6, 8]
    assert {request.session for request in (main, helped, helped_more, last)} == {"s"}
    assert goes_on(main, last)
    assert goes_on(helped, helped_more)
    assert main.prompt.shared_with(helped.prompt) == 0


def part(kind: str, id: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": id} | more


def user(id: str, created: int, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"info": {"id": id, "role": "user", "time": {"created": created}}, "parts": list(parts)}


def assistant(id: str, parent: str, created: int, reported: int, *parts: dict[str, Any], **info: Any) -> dict[str, Any]:
    tokens = {"input": reported - 10, "output": 3, "reasoning": 1, "cache": {"read": 10, "write": 0}}
    finish = part("step-finish", f"{id}f", tokens=tokens)
    base = {"id": id, "role": "assistant", "parentID": parent, "finish": "stop", "tokens": tokens}
    time = {"time": {"created": created, "completed": created + 1000}}
    return {"info": base | time | info, "parts": [part("step-start", f"{id}s"), *parts, finish]}


def tool(id: str, output: str, start: int, **time: int) -> dict[str, Any]:
    state = {
        "status": "completed",
        "input": {"x": 1},
        "output": output,
        "time": {"start": start, "end": start + 1} | time,
    }
    return part("tool", id, tool="read", state=state)


def export(path: Path, *messages: dict[str, Any]) -> Path:
    return files.write_json(path, {"info": {"id": "ses"}, "messages": list(messages)})


def test_opencode_steps_are_calls(tmp_path: Path) -> None:
    path = export(
        tmp_path / "file",
        user("m1", 1000, part("text", "p1", text="go"), part("text", "p2", text="unseen", ignored=True)),
        assistant("m2", "m1", 1500, 300, tool("p3", "rows", 2000)),
        assistant("m3", "m1", 2500, 300, part("reasoning", "p4", text="hm"), part("text", "p5", text="done")),
        assistant("m4", "m1", 4000, 300, error={"name": "APIError"}),
        user("m5", 5000, part("text", "p6", text="next")),
        assistant("m6", "m5", 5100, 300, part("text", "p7", text="ok")),
    )
    first, second, third = requests(path, tokenize=letters)
    assert [request.time for request in (first, second, third)] == [0.5, 1.5, 4.1]
    assert [request.think for request in (first, second, third)] == [None, 0.5, 1.6]
    assert first.prompt_tokens == 300
    known = "<|user|>\ngo<|end|>\n<|assistant|>\n"
    assert text(prompt_ids(first)[-len(known) :]) == known
    assert text(output_ids(first)) == '\nread{"x":1}<|end|>\n'
    assert goes_on(first, second)
    assert goes_on(second, third)
    newest = "<|assistant|>\nhmdone<|end|>\n<|user|>\nnext<|end|>\n<|assistant|>\n"
    assert text(prompt_ids(third)[-len(newest) :]) == newest


def test_opencode_several_steps_of_one_message(tmp_path: Path) -> None:
    message = assistant("m2", "m1", 1500, 100, tool("p3", "rows", 2000))
    message["parts"] += assistant("m2", "m1", 1500, 150, part("text", "p4", text="done"))["parts"]
    path = export(tmp_path / "file", user("m1", 1000, part("text", "p1", text="go")), message)
    first, second = requests(path, tokenize=letters)
    assert goes_on(first, second)
    assert "rows" in text(prompt_ids(second)[-40:])
    assert second.time == 1.0


def test_opencode_compaction_keeps_a_tail(tmp_path: Path) -> None:
    path = export(
        tmp_path / "file",
        user("m1", 1000, part("text", "p1", text="old")),
        assistant("m2", "m1", 1500, 300, part("text", "p2", text="old answer")),
        user("m3", 3000, part("text", "p3", text="kept")),
        assistant("m4", "m3", 3500, 300, part("text", "p4", text="kept answer")),
        user("m5", 5000, part("compaction", "p5", auto=True, tail_start_id="m3")),
        assistant("m6", "m5", 5500, 200, part("text", "p6", text="the summary"), summary=True),
        user("m7", 7000, part("text", "p7", text="go on")),
        assistant("m8", "m7", 7500, 300, part("text", "p8", text="ok")),
    )
    first, second, summary, last = requests(path, tokenize=letters)
    assert goes_on(first, second)
    assert summary.prompt_tokens == 200
    assert summary.prompt.shared_with(second.prompt) == 0
    shown = "".join(
        f"<|{role}|>\n{words}<|end|>\n"
        for role, words in [
            ("user", "What did we do so far?"),
            ("assistant", "the summary"),
            ("user", "kept"),
            ("assistant", "kept answer"),
            ("user", "go on"),
        ]
    )
    shown += "<|assistant|>\n"
    assert text(prompt_ids(last)[-len(shown) :]) == shown
    assert last.prompt_tokens == len(shown) + first.prompt.shared_with(last.prompt) - len("<|user|>\n")


def test_opencode_prunes_results_from_then_on(tmp_path: Path) -> None:
    path = export(
        tmp_path / "file",
        user("m1", 1000, part("text", "p1", text="go")),
        assistant("m2", "m1", 1500, 300, tool("p2", "many rows", 2000, compacted=6000)),
        assistant("m3", "m1", 2500, 300, part("text", "p3", text="done")),
        user("m4", 7000, part("text", "p4", text="next")),
        assistant("m5", "m4", 7100, 300, part("text", "p5", text="ok")),
    )
    _, before, after = requests(path, tokenize=letters)
    assert "many rows" in text(prompt_ids(before)[-60:])
    assert "[Old tool result content cleared]" in text(prompt_ids(after)[-150:])
    assert not goes_on(before, after)


def test_opencode_redacted_texts_are_as_long_as_reported(tmp_path: Path) -> None:
    path = export(
        tmp_path / "file",
        user("m1", 1000, part("text", "p1", text="[redacted:text:p1]")),
        assistant("m2", "m1", 1500, 300, part("text", "p2", text="[redacted:text:p2]")),
        user("m3", 3000, part("text", "p3", text="[redacted:text:p3]")),
        assistant("m4", "m3", 3500, 900, part("text", "p4", text="[redacted:text:p4]")),
        user("m5", 5000, part("text", "p5", text="[redacted:text:p5]")),
        assistant("m6", "m5", 5500, 1000, part("text", "p6", text="[redacted:text:p6]")),
    )
    first, second, third = requests(path, tokenize=letters)
    assert [request.prompt_tokens for request in (first, second, third)] == [300, 900, 1000]
    assert goes_on(first, second)
    assert second.prompt.shared_with(third.prompt) >= 900
