"""Readers of traces that hold ids: what they make of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longturn.lab.trace import TraceRequest, open_trace
from longturn.lab.trace.form import Trace
from tests.lab.trace import files
from tests.lab.trace.files import output_ids, prompt_ids


def requests(path: Path, **options: Any) -> list[TraceRequest]:
    trace: Trace = open_trace(path, **options)
    return list(trace)


def test_requests_as_they_are(tmp_path: Path) -> None:
    more = files.TOKENS | {"id": "x", "think": 2, "salt": "tenant", "output": []}
    first, second = requests(files.write_lines(tmp_path / "file", [files.TOKENS, more]))
    assert (first.id, first.session, first.time, first.think, first.salt) == ("7", "a", 1.5, None, "")
    assert prompt_ids(first) == [5, 6, 7]
    assert output_ids(first) == [8, 9]
    assert (first.prompt_tokens, first.output_tokens, first.label) == (3, 2, "line 1")
    assert (second.id, second.think, second.salt, second.output_tokens) == ("x", 2.0, "tenant", 0)


def hashes(t: int, n_in: int, n_out: int, ids: list[int]) -> dict[str, Any]:
    return {"timestamp": t, "input_length": n_in, "output_length": n_out, "hash_ids": ids}


def test_mooncake_sessions_go_on_from_whole_prompts(tmp_path: Path) -> None:
    lines = [
        hashes(0, 1100, 500, [0, 1, 2]),  # whole blocks: 0, 1
        hashes(500, 600, 10, [0, 9]),  # shares the first block only
        hashes(1000, 2100, 9, [0, 1, 3, 4, 5]),  # goes on from the first
        hashes(2000, 2600, 9, [0, 1, 3, 4, 6, 7]),  # goes on from the third
        hashes(3000, 2600, 9, [0, 1, 3, 8, 9, 10]),  # goes on from the first once more: a branch
    ]
    read = requests(files.write_lines(tmp_path / "file", lines))
    assert [request.session for request in read] == ["0", "1", "0", "0", "0"]
    assert [request.time for request in read] == [0, 0.5, 1, 2, 3]
    # 1600 tokens of prompt and answer fill three blocks, the last of which is that of the prompt's end.
    assert output_ids(read[0]) == [3]
    assert output_ids(read[2]) == []
    assert [request.output for request in read[3:]] == [None, None]


def test_mooncake_answers_end_where_the_next_prompt_does(tmp_path: Path) -> None:
    lines = [hashes(0, 1024, 5000, [0, 1]), hashes(1, 2000, 1, [0, 1, 2, 3])]
    first, _ = requests(files.write_lines(tmp_path / "file", lines))
    assert output_ids(first) == [2]


def weka_lines() -> list[Any]:
    sub_agent = {
        "type": "subagent",
        "t": 3.5,
        "agent_id": "agent_1",
        "tool_tokens": 64,
        "system_tokens": 0,
        "requests": [files.weka_call(0, 140, 10, [50, 2]), files.weka_call(1, 300, 10, [50, 2, 60, 2], think_time=0.5)],
    }
    return [
        files.weka_session(
            "one",
            [
                files.weka_call(0, 200, 130, [1, 3], think_time=0),
                sub_agent,
                files.weka_call(9, 400, 1, [1, 3, 7, 3], think_time=4),
                files.weka_call(10, 130, 1, [1, 2]),
            ],
            100,
            50,
        ),
        files.weka_session("two", [files.weka_call(0, 130, 5, [1, 1, 9, 1])], 100, 50),
    ]


def test_weka_sessions_with_sub_agents(tmp_path: Path) -> None:
    read = requests(files.write_lines(tmp_path / "file", weka_lines()), span=0)
    assert [(request.id, request.time) for request in read] == [
        ("one/1", 0),
        ("two/1", 0),
        ("one/agent_1/1", 3.5),
        ("one/agent_1/2", 4.5),
        ("one/2", 9),
        ("one/3", 10),
    ]
    assert {request.session for request in read} == {"one", "two"}
    by_id = {request.id: request for request in read}
    assert [by_id[name].think for name in ("one/1", "one/agent_1/2", "one/2", "one/3")] == [None, 0.5, 4, None]
    assert prompt_ids(by_id["one/2"]) == [1, 2, 3, 7, 8, 9]
    assert (by_id["one/2"].prompt_tokens, by_id["one/2"].output_tokens) == (400, 1)
    assert output_ids(by_id["one/1"]) == [7, 8]  # 330 tokens are five whole blocks
    assert output_ids(by_id["one/agent_1/1"]) == []  # 150 tokens are two
    assert by_id["one/2"].output is None  # what follows does not go on from it
    assert by_id["one/agent_1/2"].label == "line 1, sub-agent agent_1, request 2"
    others = {block for name, request in by_id.items() if name != "two/1" for block in prompt_ids(request)}
    assert not others & set(prompt_ids(by_id["two/1"]))


def test_weka_heads_of_equal_sizes_are_shared_on_request(tmp_path: Path) -> None:
    # The head of 150 tokens has two whole blocks; the second request of session `two` would differ in its second.
    path = files.write_lines(tmp_path / "file", weka_lines())
    own = {request.id: prompt_ids(request) for request in requests(path, span=0)}
    shared = {request.id: prompt_ids(request) for request in requests(path, span=0, shared_heads=True)}
    assert shared["one/1"][:2] == shared["one/2"][:2] == shared["one/3"] == shared["two/1"]
    assert shared["one/1"][2:] == shared["one/2"][2:3]
    assert shared["one/agent_1/1"][0] == shared["one/agent_1/2"][0] not in own["one/agent_1/1"]
    assert {name: len(ids) for name, ids in shared.items()} == {name: len(ids) for name, ids in own.items()}
    heads = {*shared["one/1"][:2], shared["one/agent_1/1"][0]}
    assert len(heads) == 3
    assert not heads & {id for ids in shared.values() for id in ids[2:]}


def test_weka_starts_are_random_but_reproducible(tmp_path: Path) -> None:
    sessions = [files.weka_session(str(i), [files.weka_call(5, 130, 5, [1, 2])]) for i in range(50)]
    path = files.write_lines(tmp_path / "file", sessions)
    times = [request.time for request in requests(path, span=1000, seed=3)]
    assert times == [request.time for request in requests(path, span=1000, seed=3)]
    assert times != [request.time for request in requests(path, span=1000, seed=4)]
    assert times == sorted(times)
    assert 5 <= times[0] < 200 < 800 < times[-1] <= 1005


def entry(t: str, role: str, *parts: tuple[str, int, str | None], **more: Any) -> dict[str, Any]:
    listed = [{"kind": kind, "chars": chars} | ({"id": id} if id else {}) for kind, chars, id in parts]
    return {"t": f"2026-01-01T{t}Z", "role": role, "parts": listed} | more


def usage(n_new: int, n_read: int = 0, n_output: int = 0) -> dict[str, Any]:
    return {"usage": {"input_tokens": n_new, "cache_read_input_tokens": n_read, "output_tokens": n_output}}


def test_structure_is_rebuilt_in_file_order(tmp_path: Path) -> None:
    session = {
        "session": "s",
        "entries": [
            entry("10:00:00", "user", ("text", 28, "q")),
            entry("10:00:02", "assistant", ("thinking", 14, None), request="r1", **usage(100, 10)),
            entry("10:00:03", "assistant", ("tool_use", 28, "c1"), request="r1", **usage(100, 10)),
            entry("10:00:04", "user", ("tool_result", 280, "file")),
            entry("10:00:05", "assistant", ("tool_use", 28, "c2"), request="r1", **usage(100, 10, 90)),
            entry("10:00:06", "user", ("tool_result", 280, "file")),
            entry("10:00:09", "assistant", ("text", 28, "a"), request="r2"),
            entry("10:01:00", "system", event="compact_boundary"),
            entry("10:01:00", "user", ("text", 56, "summary")),
            entry("10:01:02", "assistant", ("text", 28, "b"), request="r3", **usage(70)),
        ],
    }
    later = {"session": "later", "entries": session["entries"]}
    path = files.write_lines(tmp_path / "file", [session])
    first, second, third = requests(path)
    assert [first.time, second.time, third.time] == [0, 6, 60]
    assert [first.think, second.think, third.think] == [None, 1, 51]
    assert first.prompt_tokens == 110  # a head of 100 tokens, and 10 for 28 characters
    assert (first.output_tokens, len(output_ids(first))) == (90, 25)
    assert files.goes_on(first, second)
    assert second.prompt_tokens == 110 + 25 + 200
    results = prompt_ids(second)[-200:]
    assert results[:100] == results[100:]  # equal ids, equal content
    assert prompt_ids(third)[:50] == prompt_ids(first)[:50]  # of a head that now is 50 tokens
    assert third.prompt_tokens == 70
    pair = files.write_lines(tmp_path / "pair", [later, session])
    own, shared = requests(pair), requests(pair, shared_heads=True)
    assert {request.session for request in own[:2]} == {"s", "later"}
    assert own[0].prompt.shared_with(own[1].prompt) == 0
    assert shared[0].prompt == shared[1].prompt


def test_azure_tells_arrivals_and_lengths(tmp_path: Path) -> None:
    lines = [*files.AZURE, "2023-11-16 18:15:50.9951690,396,109"]
    first, second = requests(files.write_lines(tmp_path / "file", lines))
    assert first.time == 0
    assert second.time == pytest.approx(4.314579)
    assert [(r.prompt_tokens, r.output_tokens) for r in (first, second)] == [(374, 44), (396, 109)]
    assert not set(prompt_ids(first)) & set(prompt_ids(second))
