"""Recordings are read into calls with what came before them and what they answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from longturn.errors import TraceError
from longturn.lab.context.sessions import read_sessions
from tests.lab.context.recordings import START, Recording, part


def test_calls_have_what_came_before_and_what_they_said(tmp_path: Path) -> None:
    recording = Recording()
    recording.user(0, part("text", 166, "hello"))
    recording.user(1, part("text", 900, "memory"), isMeta=True)
    recording.answer(5, "r1", part("tool_use", 20, "c", tool="Read", call="1", file="f"), usage=(2, 30, 40))
    recording.user(6, part("tool_result", 700, "content", call="1"))
    # The answer is still being written while its first call is done already.
    recording.answer(7, "r1", part("tool_use", 21, "d", tool="Grep", call="2"), usage=(2, 30, 40))
    recording.user(8, part("tool_result", 30, "lines", call="2", error=True))
    recording.answer(20, "r2", part("thinking", 50), part("text", 60, "done"))
    [session], notes = read_sessions(recording.write(tmp_path))
    first, second = session.calls
    assert (first.time, first.end) == (START.timestamp() + 1, START.timestamp() + 7)
    assert first.usage.prompt == 72
    assert [(p.kind, p.chars, p.synthetic, p.turn) for p in first.before] == [
        ("text", 166, False, 0),
        ("text", 900, True, 0),
    ]
    assert [(p.kind, p.tool, p.resource, p.part) for p in first.answer] == [
        ("call", "Read", "f", 0),
        ("call", "Grep", None, 1),
    ]
    assert len({p.message for p in first.answer}) == 1
    assert [(p.role, p.tool, p.resource, p.content, p.error) for p in second.before] == [
        ("tool", "Read", "f", "content", False),
        ("tool", "Grep", None, "lines", True),
    ]
    assert [p.message for p in second.before] == [4, 5]
    assert [p.kind for p in second.answer] == ["reasoning", "text"]
    assert notes == []


def test_compactions_and_answers_that_the_program_wrote(tmp_path: Path) -> None:
    recording = Recording()
    recording.user(0, part("text", 10, "a"))
    recording.answer(1, "r1", part("text", 10, "b"))
    recording.answer(2, "x", part("text", 22, "no answer"), model="<synthetic>")
    recording.compacted(3, 500)
    recording.user(4, part("text", 11, "c"))
    recording.answer(5, "r2", part("text", 12, "d"))
    [session], _ = read_sessions(recording.write(tmp_path))
    first, second = session.calls
    assert (first.compacted, second.compacted) == (False, True)
    assert [piece.chars for piece in second.summary] == [500]
    assert [(piece.role, piece.chars) for piece in second.before] == [("assistant", 22), ("user", 11)]
    assert second.before[-1].turn == 1  # a summary is no turn


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"session": "s", "tokens": [1, 2], "output": 1}\n')
    with pytest.raises(TraceError, match="replayed on such files only"):
        read_sessions(other)
    silent = Recording()
    silent.user(0, part("text", 10))
    with pytest.raises(TraceError, match="holds no call"):
        read_sessions(silent.write(tmp_path))


def test_bad_lines_are_named_or_left_out(tmp_path: Path) -> None:
    recording = Recording()
    recording.user(0, part("text", 10, "a"))
    recording.answer(1, "r1", part("text", 10, "b"))
    path = recording.write(tmp_path, "bad.jsonl")
    import gzip

    path.write_bytes(gzip.decompress(path.read_bytes()) + b'\n{"session": "t", "entries": [{}]}\n')
    with pytest.raises(TraceError, match="line 2"):
        read_sessions(path)
    sessions, notes = read_sessions(path, skip_bad=True)
    assert len(sessions) == 1
    assert "Left out as malformed: 1" in notes[0]
