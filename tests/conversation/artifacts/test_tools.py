"""The tools that a model gets: what they give for sound and for unsound arguments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from longturn.conversation.artifacts.handle import handle_of
from longturn.conversation.artifacts.store import Artifacts
from longturn.conversation.artifacts.tools import MEMORY_TOOLS, Memory, artifact_read, artifact_search, recall
from longturn.conversation.entries import Entry, Said
from longturn.conversation.parts import File, Message, Text, ToolCall, ToolResult
from longturn.errors import ArtifactError

LOG = "".join(f"step {number} ok\n" for number in range(2000)) + "step 2000 failed: port 8443 in use\n"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    artifacts = Artifacts(tmp_path / "artifacts")
    notes = artifacts.put("remember the port\n")
    picture = artifacts.put(b"\x89PNG\0\0")
    artifacts.put("of another conversation: port 1")
    artifacts.put(LOG)
    entries: list[Entry] = [
        Said(
            0,
            Message(
                "a",
                "user",
                (
                    Text("Use port 9000, never 80."),
                    File("notes.txt", "text/plain", notes, 18),
                    File("screen.png", "image/png", picture, 6),
                ),
            ),
        ),
        Said(1, Message("b", "assistant", (ToolCall("c", "bash", '{"command":"make"}'),))),
        Said(2, Message("c", "tool", (ToolResult("c", LOG),))),
    ]
    return Memory(artifacts, lambda: entries, lambda: {(0, 0)})


def log_handle(memory: Memory) -> str:
    return next(handle_of(digest) for digest in memory.artifacts if memory.artifacts.get(digest) == LOG.encode())


def test_read_a_range(memory: Memory) -> None:
    answer = artifact_read(memory, {"handle": log_handle(memory), "line": "2000", "lines": 2, "character": None})
    assert answer == "2000: step 1999 ok\n2001: step 2000 failed: port 8443 in use\n[end]"


def test_read_what_only_the_history_has_still(memory: Memory) -> None:
    handle = log_handle(memory)
    shutil.rmtree(memory.artifacts.path)
    assert artifact_read(memory, {"handle": handle, "lines": 1}).startswith("1: step 0 ok\n[go on with line=2")
    with pytest.raises(ArtifactError, match="there is no artifact"):
        artifact_read(memory, {"handle": "artifact:" + "0" * 12})


def test_search_finds_only_what_is_of_this_conversation(memory: Memory) -> None:
    notes = next(digest for digest in memory.artifacts if memory.artifacts.get(digest) == b"remember the port\n")
    assert artifact_search(memory, {"query": "PORT"}).splitlines() == [
        log_handle(memory),
        "2001: step 2000 failed: port 8443 in use",
        handle_of(notes),
        "1: remember the port",
    ]
    assert artifact_search(memory, {"query": "unicorn"}) == "[no line of 4 artifacts matches 'unicorn']".replace(
        "4", "3"
    )


def test_search_stops_at_the_limit_and_says_so(memory: Memory) -> None:
    lines = artifact_search(memory, {"query": "step", "limit": 3, "handle": log_handle(memory)}).splitlines()
    assert lines[1:] == [
        *(f"{n + 1}: step {n} ok" for n in range(3)),
        "[more than 3 lines match: ask for more, or in other words]",
    ]


def test_search_names_a_damaged_artifact_and_goes_on(memory: Memory) -> None:
    log = log_handle(memory).removeprefix("artifact:")
    (path,) = memory.artifacts.path.rglob(log + "*")
    path.write_bytes(b"torn")
    answer = artifact_search(memory, {"query": "port"})
    assert "is damaged on disk" in answer
    assert "1: remember the port" in answer


def test_recall_leaves_out_what_is_sent(memory: Memory) -> None:
    assert recall(memory, {"query": "never"}).startswith("[nothing of")
    assert recall(memory, {"query": "8443"}).startswith('message 2 (result of bash, {"command":"make"}): ')
    assert recall(memory, {"message": 0}) == (
        "1: [user]\n2: Use port 9000, never 80.\n3: [file, text/plain]\n4: notes.txt\n"
        "5: [file, image/png]\n6: screen.png\n[end]"
    )


def test_binary_data_is_not_shown(memory: Memory) -> None:
    picture = next(digest for digest in memory.artifacts if memory.artifacts.text(digest) is None)
    assert "binary" in artifact_read(memory, {"handle": handle_of(picture)})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (artifact_read, {}),
        (artifact_read, {"handle": "artifact:123456789abc", "line": 0}),
        (artifact_read, {"handle": "artifact:123456789abc", "path": "/etc/passwd"}),
        (artifact_search, {"query": ""}),
        (artifact_search, {"query": "x", "limit": 10_000}),
        (recall, {}),
        (recall, {"message": -1}),
        (recall, {"message": "first"}),
    ],
)
def test_unsound_arguments_are_refused(memory: Memory, tool, arguments) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ArtifactError):
        tool(memory, arguments)


def test_schemas_are_plain_and_stand_for_what_the_functions_take(memory: Memory) -> None:
    good = {
        "artifact_read": {"handle": log_handle(memory)},
        "artifact_search": {"query": "x"},
        "recall": {"query": "x"},
    }
    for tool in MEMORY_TOOLS:
        Draft202012Validator.check_schema(tool.parameters)
        check = Draft202012Validator(tool.parameters)
        assert check.is_valid(good[tool.name])
        assert not check.is_valid({**good[tool.name], "path": "x"})
        assert tool.function(memory, good[tool.name])
        assert "$ref" not in str(tool.parameters)
