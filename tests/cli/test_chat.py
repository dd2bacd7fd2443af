"""`longturn chat`: scripted from a pipe, against an engine of its own and against other servers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.cli.chat import Conversation
from longturn.cli.chat_client import ChatClient
from longturn.cli.chat_meters import Meters
from longturn.ledger import RequestLine, TokenUse


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
    assert second[1] > 0
    assert second[3] == first[0] + second[0]
    assert third[3] == third[0]
    assert "/reset begins a new conversation" in result.stderr


class OtherServer(BaseHTTPRequestHandler):
    """A server that speaks the dialect without a word of ours. Keeps what it was sent."""

    bodies: ClassVar[list[dict]] = []

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "other"}]}))

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if self.bodies[-1]["messages"][-1]["content"] == "too long":
            self._send(400, json.dumps({"error": {"message": "shorten it"}}))
            return
        chunks = [
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


def conversation(url: str) -> Conversation:
    return Conversation(ChatClient(url), "other", None, None, {}, interactive=True)


def test_a_person_may_react_to_an_error(other: str, capsys: pytest.CaptureFixture):
    talk = conversation(other)
    talk.take("too long")
    assert "error: shorten it" in capsys.readouterr().err
    talk.take("Hello")
    assert [message["content"] for message in OtherServer.bodies[-1]["messages"]] == ["Hello"]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    talk = conversation(other)

    def echo(text: str = "", nl: bool = True) -> None:
        del nl
        if text == "day":
            raise KeyboardInterrupt

    monkeypatch.setattr("longturn.cli.chat.typer.echo", echo)
    talk.take("Hello")
    assert "stopped" in capsys.readouterr().err
    monkeypatch.undo()
    talk.take("More")
    assert OtherServer.bodies[-1]["messages"][1] == {"role": "assistant", "content": "Good day"}


def test_the_meters_tell_window_from_spent():
    use = TokenUse(logical=1000, cached={"device": 700, "disk": 100}, computed=200, output=24)
    line = RequestLine("r", "s", "m", 1.0, use, ttft_ms=12.3)
    meters = Meters(4096)
    assert meters.add(line) == (
        "logical 1,000 = cached 800 (device 700, disk 100) + computed 200 · output 24 · TTFT 12 ms · window 25%"
        " · spent 1,000 logical (80% cached), 24 output"
    )
    assert "window 25% · spent 2,000 logical (80% cached), 48 output" in meters.add(line)
