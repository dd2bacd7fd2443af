"""`longturn chat`: scripted from a pipe, against an engine of its own and against other servers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.cli.chat_meters import Meters
from longturn.cli.chat_models import ChatWindow
from longturn.cli.chat_talk import Settings, Talk
from longturn.conversation.history import History
from longturn.conversation.models.openai_chat import OpenAIChat
from longturn.conversation.models.retrying import Retrying
from longturn.conversation.policies.registry import context_policy
from longturn.conversation.window import Window
from longturn.ledger import RequestLine, TokenUse
from tests.conversation.models.replies import Reply, provider
from tests.conversation.models.wires import stream


def test_a_conversation_with_an_engine_of_its_own(cli: CliRunner, tiny_folder: Path):
    result = cli.invoke(
        app,
        ["chat", "--model", str(tiny_folder), "--max-tokens", "8", "--temperature", "0", "--device-tokens", "4096"],
        input="Hello\n\n/help\nAnd again\n/reset\nHello\n/exit\nnever read\n",
    )
    assert result.exit_code == 0, result.output
    answers = [line for line in result.stdout.split("\n") if line]
    assert len(answers) == 3
    assert answers[0] == answers[2]
    meters = re.findall(r"logical ([\d,]+) = cached ([\d,]+).* \+ computed ([\d,]+).*spent ([\d,]+)", result.stderr)
    first, second, third = ([int(n.replace(",", "")) for n in found] for found in meters)
    for logical, cached, computed, _ in (first, second, third):
        assert logical == cached + computed
    assert first[1] == 0
    assert result.stderr.count("cut off at the limit of an answer") == 3
    assert second[1] > 0
    assert second[3] == first[0] + second[0]
    assert third[3] == third[0]
    assert "/reset begins a new conversation" in result.stderr


def test_a_conversation_outgrows_the_window_of_a_real_engine(cli: CliRunner, tiny_folder: Path):
    lines = "".join(f"message {n}: keep rule {n} and read file_{n}.py {'word ' * 60}\n" for n in range(9))
    options = ["--context", "1200", "--max-tokens", "8", "--temperature", "0", "--device-tokens", "4096"]
    result = cli.invoke(app, ["chat", "--model", str(tiny_folder), *options], input=f"{lines}/window\n")
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"logical [\d,]+ = ", result.stderr)) == 9
    assert max(int(n.replace(",", "")) for n in re.findall(r"logical ([\d,]+) = ", result.stderr)) < 1200
    assert "tokens became" in result.stderr


class OtherServer(BaseHTTPRequestHandler):
    """A server that speaks the dialect without a word of ours. Keeps what it was sent."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "other"}]}))

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if self.bodies[-1]["messages"][-1]["content"] == "too long":
            self._send(400, json.dumps({"error": {"message": "shorten it"}}))
            return
        last = self.bodies[-1]["messages"][-1]
        chunks: list[dict[str, Any]] = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "Good "}}]},
            {"choices": [{"delta": {"content": "day"}, "finish_reason": "stop"}]},
            {
                "id": "x",
                "model": "other",
                "choices": [],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            },
        ]
        if last["content"] == "use tools":
            calls = [
                {"index": n, "id": f"c{n}", "function": {"name": name, "arguments": json.dumps(given)}}
                for n, (name, given) in enumerate(CALLS)
            ]
            chunks[1:3] = [{"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}]
        self._send(200, ": waiting\n\n" + "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[str]:
    OtherServer.bodies.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_conversation_with_another_server(cli: CliRunner, other: str):
    result = cli.invoke(app, ["chat", "--url", other, "--system", "Be kind."], input="Hello\nMore\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Good day\nGood day\n"
    assert "logical 10 = cached 4 (provider 4) + computed 6 · output 2 · TTFT" in result.stderr
    assert "window" not in result.stderr
    assert "spent 20 logical (40% cached), 4 output" in result.stderr
    assert OtherServer.bodies[1]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Good day"},
        {"role": "user", "content": "More"},
    ]
    assert "max_tokens" not in OtherServer.bodies[0]


def test_in_a_script_an_error_ends_the_program(cli: CliRunner, other: str):
    result = cli.invoke(app, ["chat", "--url", other], input="too long\nMore\n")
    assert result.exit_code == 1
    assert "error: shorten it" in result.stderr
    assert len(OtherServer.bodies) == 1


PROGRAM = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("calc")

@server.tool()
def add(a: int, b: int) -> str:
    "Adds."
    return str(a + b)

server.run()
"""
CALLS = (("read", {"path": "a.txt"}), ("calc__add", {"a": 2, "b": 3}))
HI = [
    {
        "type": "message_start",
        "message": {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 108, "cache_read_input_tokens": 900, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]


@pytest.fixture(autouse=True)
def _own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTURN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("LONGTURN_HISTORY", raising=False)


@contextmanager
def talking(url: str, **changes: Any) -> Iterator[Talk]:
    """A chat of a person at a terminal."""
    with asyncio.Runner() as runner, History.open() as history:
        model = Retrying(OpenAIChat("other", url), wait=0.001)
        given = {"system": None, "max_tokens": None, "temperature": None, "root": None, "tools": [], **changes}
        window = ChatWindow(changes.pop("window", Window(32_000, 2_000)), False)
        given.pop("window", None)
        settings = Settings(policy=context_policy("longturn"), window=window, **given)
        yield Talk(runner, history, model, settings, interactive=True)
        runner.run(model.close())


def test_a_person_may_react_to_an_error(other: str, capsys: pytest.CaptureFixture):
    with talking(other) as talk:
        talk.take("too long")
        assert "error: shorten it" in capsys.readouterr().err
        talk.take("Hello")
        assert [message["content"] for message in OtherServer.bodies[-1]["messages"]] == ["Hello"]
        talk.take("/window of")
        talk.take("/fork nine")
        assert "no number" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def echo(text: str = "", nl: bool = True) -> None:
        del nl
        if text == "day":
            raise KeyboardInterrupt

    with talking(other) as talk:
        monkeypatch.setattr("longturn.cli.chat_talk.typer.echo", echo)
        talk.take("Hello")
        assert "stopped" in capsys.readouterr().err
        monkeypatch.undo()
        talk.take("More")
    assert OtherServer.bodies[-1]["messages"][1] == {"role": "assistant", "content": "Good day"}


def test_a_conversation_goes_on_in_another_process(cli: CliRunner, other: str):
    first = cli.invoke(app, ["chat", "--url", other, "--system", "Be kind."], input="Hello\n")
    second = cli.invoke(app, ["chat", "--url", other, "--session", "last"], input="More\n/spent\n")
    assert (first.exit_code, second.exit_code) == (0, 0), second.output
    said = ["Be kind.", "Hello", "Good day", "More"]
    assert [message["content"] for message in OtherServer.bodies[-1]["messages"]] == said
    assert "spent 20 logical (40% cached), 4 output" in second.stderr
    assert "2 requests: 20 logical = 8 cached + 12 computed; 4 output" in second.stderr
    missing = cli.invoke(app, ["chat", "--url", other, "--session", "nonesuch"], input="More\n")
    assert missing.exit_code == 1
    assert "no session 'nonesuch'" in missing.stderr


def test_meters_view_and_branches(cli: CliRunner, other: str):
    lines = "/window\n/spent\n/view\n/compact\n/fork\nOn the branch\n/window\n"
    result = cli.invoke(app, ["chat", "--url", other], input=f"Hello\n{lines}")
    assert result.exit_code == 0, result.output
    assert "the next request has about 12 tokens" in result.stderr
    assert "--context gives it" in result.stderr
    assert "the latest request and its answer had 12, as reported" in result.stderr
    assert "user text: " in result.stderr
    assert "finds nothing that could go" in result.stderr
    with History.open() as history:
        branch, root = history.sessions()
        assert branch.parent == root.id
        assert (root.entries, branch.entries) == (2, 4)
        assert root.title == "Hello"
    known = cli.invoke(app, ["chat", "--url", other, "--context", "4000"], input="Hello\n/window\n")
    assert "of the 3,000 that are usable" in known.stderr
    assert "window 0%" in known.stderr


def test_commands_need_a_conversation(cli: CliRunner, other: str):
    for command in ("/window", "/spent", "/view", "/compact", "/undo", "/fork", "/continue"):
        result = cli.invoke(app, ["chat", "--url", other], input=f"{command}\n")
        assert result.exit_code == 1
        assert "say something first" in result.stderr


def test_tools_in_a_root_and_of_a_server(cli: CliRunner, other: str, tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("the word is heron")
    program = tmp_path / "server.py"
    program.write_text(PROGRAM)
    options = ["--root", str(root), "--mcp", f"calc={sys.executable} {program}"]
    result = cli.invoke(app, ["chat", "--url", other, *options], input="use tools\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Good day\n"
    names = [tool["function"]["name"] for tool in OtherServer.bodies[0]["tools"]]
    assert names == ["artifact_read", "artifact_search", "calc__add", "list", "read", "recall", "search"]
    results = OtherServer.bodies[1]["messages"][-2:]
    assert [message["content"] for message in results] == ["the word is heron", "5"]
    assert 'read {"path": "a.txt"}' in result.stderr
    before = OtherServer.bodies[-1]
    cli.invoke(app, ["chat", "--url", other, *options, "--session", "last"], input="More\n")
    after = OtherServer.bodies[-1]
    assert after["tools"] == before["tools"]
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert [message["role"] for message in after["messages"][len(before["messages"]) :]] == ["assistant", "user"]
    bad = cli.invoke(app, ["chat", "--url", other, "--mcp", "calc"], input="x\n")
    assert "NAME=COMMAND" in bad.stderr


def test_two_chats_of_one_session_do_not_mix(other: str, capsys: pytest.CaptureFixture):
    with talking(other) as one, talking(other) as two:
        one.take("Hello")
        two.resume("last")
        one.take("From one")
        two.take("From two")
        assert "somebody else wrote to session" in capsys.readouterr().err
        two.take("Again from two")
        said = ["Hello", "Good day", "From one", "Good day", "Again from two"]
        assert [message["content"] for message in OtherServer.bodies[-1]["messages"]] == said


def test_undo_takes_back_a_withdrawal(other: str, capsys: pytest.CaptureFixture):
    with talking(other) as talk:
        talk.take("too long")
        talk.take("/undo")
        assert "undo of the edits" in capsys.readouterr().err
        talk.take("/view")
        assert "too long" in capsys.readouterr().err
        talk.take("/undo")


def test_a_turn_that_was_stopped_is_finished(other: str, capsys: pytest.CaptureFixture):
    with talking(other) as talk:
        talk.take("too long")
        talk.take("/undo")
        talk.take("/continue")
        assert "error: shorten it" in capsys.readouterr().err
        talk.take("Hello")
        talk.take("/continue")
        assert "is finished" in capsys.readouterr().err


def test_a_provider_through_its_own_sdk(cli: CliRunner, monkeypatch: pytest.MonkeyPatch):
    with provider() as api:
        listed = {"type": "model", "id": "m", "display_name": "M", "max_input_tokens": 9000, "max_tokens": 500}
        api.will(Reply(json.dumps(listed)), stream("anthropic", HI))
        command = ["chat", "--api", "anthropic", "--model", "claude-sonnet-4-5", "--url", api.url, "--api-key", "K"]
        result = cli.invoke(app, command, input="Hello\n/spent\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "hi\n"
    assert api.asked[1].body["max_tokens"] == 500
    assert api.asked[1].headers["authorization"] == "Bearer K"
    assert "logical 1,008 = cached 900 (provider 900) + computed 108" in result.stderr
    # Of a million: 108 at 3 dollars, 900 at 0.3, 2 at 15.
    assert "$0.0006" in result.stderr


def test_the_meters_tell_window_from_spent():
    use = TokenUse(logical=1000, cached={"device": 700, "disk": 100}, computed=200, output=24)
    line = RequestLine("r", "s", "m", 1.0, use, ttft_ms=12.3)
    meters = Meters(4096)
    assert meters.add(line) == (
        "logical 1,000 = cached 800 (device 700, disk 100) + computed 200 · output 24 · TTFT 12 ms · window 25%"
        " · spent 1,000 logical (80% cached), 24 output"
    )
    assert Meters(5000, 904).add(line) == Meters(4096).add(line)
    assert "window 25% · spent 2,000 logical (80% cached), 48 output" in meters.add(line)
