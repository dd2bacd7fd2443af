"""`longturn mcp`, driven over stdio by the SDK's own client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from typer.testing import CliRunner

from longturn.cli import app
from longturn.conversation.artifacts.handle import handle_of
from longturn.conversation.artifacts.place import artifacts_of
from longturn.conversation.history import History
from longturn.conversation.parts import Message, Text, ToolCall, ToolResult

LONGTURN = Path(sys.executable).with_name("longturn")
LOG = "\n".join(f"line {number}" for number in range(5000)) + "\nthe answer is 42\n"


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History.open(tmp_path / "history.db")


def make_session(history: History, words: str) -> str:
    session = history.create(words)
    session.append(Message("a", "user", (Text(words),)))
    session.append(Message("b", "assistant", (ToolCall("c", "bash", "{}"),)))
    session.append(Message("c", "tool", (ToolResult("c", LOG),)))
    return session.id


def client(tmp_path: Path, *options: str) -> Client:
    arguments = ["mcp", "--history", str(tmp_path / "history.db"), *options]
    return Client(stdio_client(StdioServerParameters(command=str(LONGTURN), args=arguments, cwd=tmp_path)))


def text(result) -> str:  # type: ignore[no-untyped-def]
    assert [content.type for content in result.content] == ["text"]
    return result.content[0].text


async def test_a_client_reads_searches_and_recalls(tmp_path: Path, history: History) -> None:
    older = make_session(history, "Use port 9000.")
    make_session(history, "Use port 9001.")
    handle = handle_of(artifacts_of(history).put(LOG))
    async with client(tmp_path) as server:
        assert server.server_info is not None
        assert server.server_info.name == "longturn"
        tools = (await server.list_tools()).tools
        assert [tool.name for tool in tools] == ["artifact_read", "artifact_search", "recall"]
        read = await server.call_tool("artifact_read", {"handle": handle, "line": 5001})
        assert not read.is_error
        assert text(read) == "5001: the answer is 42\n[end]"
        assert text(await server.call_tool("artifact_search", {"query": "answer"})) == (
            f"{handle}\n5001: the answer is 42"
        )
        assert text(await server.call_tool("recall", {"query": "port"})) == "message 0 (user): Use port 9001."
        # What is said while the server runs is found too.
        history.session(history.sessions(1)[0].id).append(Message("d", "user", (Text("A later port."),)))
        assert "A later port." in text(await server.call_tool("recall", {"query": "later"}))
        for name, arguments in (("artifact_read", {"handle": "artifact:000000000000"}), ("recall", {}), ("rm", {})):
            wrong = await server.call_tool(name, arguments)
            assert wrong.is_error
            assert text(wrong)
    async with client(tmp_path, "--session", older[:8]) as server:
        assert text(await server.call_tool("recall", {"query": "port"})) == "message 0 (user): Use port 9000."


def test_without_a_session_there_is_nothing_to_offer(tmp_path: Path, history: History) -> None:
    run = CliRunner().invoke(app, ["mcp", "--history", str(tmp_path / "history.db")])
    assert run.exit_code == 1
    assert "has no session yet" in run.output
