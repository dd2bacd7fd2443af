"""Files are recognised by what is in them, and what is wrong with them is named."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from longturn.errors import ConfigError, TraceError
from longturn.lab.trace import FORMATS, open_trace
from tests.lab.trace import files

LINES: dict[str, list[Any]] = {
    "requests": [files.TOKENS],
    "mooncake": [files.HASHES],
    "weka": [files.WEKA],
    "structure": [files.STRUCTURE],
    "chat": [files.CHAT],
    "claude-code": [{"type": "summary", "leafUuid": "x", "summary": "t"}, files.CLAUDE_CODE],
    "tau-bench": [files.TAU_BENCH],
    "opencode": [files.OPENCODE],
    "azure": files.AZURE,
}


def test_every_format_has_an_example() -> None:
    assert LINES.keys() == FORMATS.keys()


@pytest.mark.parametrize("format", LINES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_is_recognised_by_content(tmp_path: Path, format: str, packed: bool) -> None:
    path = files.write_lines(tmp_path / "anything", LINES[format], packed=packed)
    trace = open_trace(path)
    assert type(trace) is type(open_trace(path, format=format))
    assert trace.name == "anything"
    assert list(trace) == list(trace)


@pytest.mark.parametrize(("format", "value"), [("tau-bench", files.TAU_BENCH), ("opencode", files.OPENCODE)])
def test_json_over_many_lines_is_recognised(tmp_path: Path, format: str, value: Any) -> None:
    path = files.write_json(tmp_path / "file.json", value)
    assert list(open_trace(path)) == list(open_trace(path, format=format))
    assert len(list(open_trace(path))) == 1


def test_a_bad_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    path = files.write_lines(tmp_path / "file", ["{", files.HASHES])
    trace = open_trace(path)
    with pytest.raises(TraceError, match=r"file, line 1: "):
        list(trace)
    assert len(list(open_trace(path, skip_bad=True))) == 1


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'nonsense'.*requests, mooncake"):
        open_trace(tmp_path / "file", format="nonsense")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n  \n", "is empty"),
        (b"\x00\xff\xfe" * 500, "no format that is known"),
        (b"hello\n", "no format that is known"),
        (b'{"a": 1}\n', "no format that is known"),
        (b"[]", "no format that is known"),
        (b"[" * 100_000, r"line 1: .*"),
        (b"{\n\n  nonsense\n", "line 3: JSON is malformed"),
        (gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], "broken or cut off"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as raised:
        open_trace(path)
    assert str(path) in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        open_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="Is a directory"):
        open_trace(tmp_path)
    locked = files.write_lines(tmp_path / "locked", [files.TOKENS])
    locked.chmod(0)
    if os.access(locked, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(TraceError, match="Permission denied"):
        open_trace(locked)


BAD_LINES = [
    ("requests", files.TOKENS | {"tokens": [1, -2]}, r"\$\.tokens\[1\]"),
    ("requests", files.TOKENS | {"tokens": [1, 2.5]}, r"\$\.tokens\[1\]"),
    ("requests", files.TOKENS | {"tokens": [True]}, r"\$\.tokens\[0\]"),
    ("requests", files.TOKENS | {"tokens": [2**31]}, r"\$\.tokens\[0\]"),
    ("requests", files.TOKENS | {"tokens": []}, r"\$\.tokens"),
    ("requests", files.TOKENS | {"output": "x"}, r"\$\.output"),
    ("requests", files.TOKENS | {"t": -1}, r"\$\.t"),
    ("requests", files.TOKENS | {"t": "now"}, r"\$\.t"),
    ("requests", '{"id": 1, "session": 1, "t": NaN, "tokens": [1], "output": []}', "malformed"),
    ("requests", '{"id": 1, "session": 1, "t": 1e999, "tokens": [1], "output": []}', "range"),
    ("requests", {"id": 1, "tokens": [1], "output": []}, "session"),
    ("requests", '{"id": 1, "sess', "malformed"),
    ("requests", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "malformed"),
    ("requests", "[1, 2]", "Expected `object`"),
    ("mooncake", files.HASHES | {"input_length": 0}, r"\$\.input_length"),
    ("mooncake", files.HASHES | {"input_length": 1600}, "takes 4 hash_ids of 512 tokens, there are 3"),
    ("mooncake", files.HASHES | {"hash_ids": [0, 1, "2"]}, r"\$\.hash_ids\[2\]"),
    ("mooncake", files.HASHES | {"output_length": -3}, r"\$\.output_length"),
    ("weka", files.WEKA | {"block_size": 32}, r"\$\.block_size"),
    ("weka", files.weka_session("s", [files.weka_call(0, 130, 5, [1])]), "pairs"),
    ("weka", files.weka_session("s", [files.weka_call(0, 130, 5, [1, 0])]), "at least 1"),
    ("weka", files.weka_session("s", [files.weka_call(0, 130, 5, [1, 3])]), "hold 3"),
    ("weka", files.weka_session("s", [{"type": "robot"}]), "robot"),
    ("structure", {"session": "s", "entries": [{"t": "noon", "role": "user"}]}, r"\$\.entries\[0\]\.t"),
    ("structure", {"session": "s", "entries": [files.STRUCTURE["entries"][1] | {"request": None}]}, "request"),
    ("chat", {"messages": []}, r"\$\.messages"),
    ("chat", {"messages": [{"content": "x"}]}, "role"),
    ("chat", files.CHAT | {"timestamp": "yesterday"}, r"\$\.timestamp"),
    ("claude-code", files.CLAUDE_CODE | {"message": None}, "message"),
    ("claude-code", files.CLAUDE_CODE | {"message": {"content": 5}}, r"\$\.message\.content"),
    ("azure", "2023-11-16 18:15:46,374", "2 fields"),
    ("azure", "2023-11-16 18:15:46,0,3", "not possible"),
    ("azure", "2023-11-16 18:15:46,many,3", "many"),
    ("azure", "noon,3,3", "noon"),
]


@pytest.mark.parametrize(("format", "bad", "message"), BAD_LINES)
def test_a_malformed_line_is_named_or_left_out(tmp_path: Path, format: str, bad: Any, message: str) -> None:
    good = LINES[format]
    path = files.write_lines(tmp_path / "trace.jsonl", [*good, "", bad, good[-1]])
    with pytest.raises(TraceError, match=rf"trace\.jsonl, line {len(good) + 2}: .*{message}.*--skip-bad"):
        list(open_trace(path, format=format))
    rest = open_trace(path, format=format, skip_bad=True)
    expected = len(list(open_trace(files.write_lines(tmp_path / "good", [*good, good[-1]]), format=format)))
    for _ in range(2):
        assert len(list(rest)) == expected
        assert rest.skipped == 1
        assert sum("Left out as malformed: 1" in note for note in rest.notes) == 1


def test_malformed_entries_of_an_array_are_named(tmp_path: Path) -> None:
    path = files.write_json(tmp_path / "file", [files.TAU_BENCH[0], {"task_id": 1, "traj": [{"role": 5}]}])
    with pytest.raises(TraceError, match=r"entry 2: .*\$\.traj\[0\]\.role"):
        list(open_trace(path))
    assert len(list(open_trace(path, skip_bad=True))) == 1


def test_a_file_that_is_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    whole = files.write_lines(
        tmp_path / "whole", [files.TOKENS | {"tokens": list(range(i, i + 999))} for i in range(50)]
    )
    path.write_bytes(gzip.compress(whole.read_bytes())[:-500])
    with pytest.raises(TraceError, match=r"file\.gz, after line \d+: the gzip data are broken or cut off"):
        list(open_trace(path))
    trace = open_trace(path, skip_bad=True)
    assert 0 < len(list(trace)) < 50
    assert trace.skipped == 1


def test_lines_come_one_by_one(tmp_path: Path) -> None:
    path = files.write_lines(tmp_path / "file", [files.TOKENS, files.TOKENS, "nonsense"])
    trace = iter(open_trace(path))
    assert next(trace).label == "line 1"
    assert next(trace).label == "line 2"
    with pytest.raises(TraceError):
        next(trace)
