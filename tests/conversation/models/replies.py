"""A server that answers as it is told, and the transcripts of real providers where they are at hand."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

TRANSCRIPTS = Path(__file__).parents[4] / "shared" / "facts" / "provider-wire.md"
SSE = "text/event-stream"


@dataclass
class Reply:
    """One response. cut: the connection breaks in the middle of the body; hang: it stays open, and nothing comes."""

    body: str
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: Any


class Provider(ThreadingHTTPServer):
    """Gives its replies in order, the last one for ever. `asked`: what it was asked; `left`: a client went away."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: deque[Reply] = deque()
        self.asked: list[Asked] = []
        self.left = threading.Event()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def will(self, *replies: Reply) -> None:
        self.replies.extend(replies)


class Handler(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        self._reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _reply(self, body: Any) -> None:
        server = self.server
        server.asked.append(Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        reply = server.replies.popleft() if len(server.replies) > 1 else server.replies[0]
        data = reply.body.encode()
        self.send_response(reply.status)
        self.send_header("content-type", reply.kind)
        self.send_header("content-length", str(len(data) + (1 if reply.cut or reply.hang else 0)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        if reply.cut:
            self.close_connection = True
        while reply.hang and not server.closing.wait(0.01):
            try:
                self.connection.settimeout(0.01)
                if not self.connection.recv(1):
                    server.left.set()
                    break
            except TimeoutError:
                continue
            except OSError:
                server.left.set()
                break

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def provider() -> Iterator[Provider]:
    server = Provider()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()


def events(values: Iterable[Any], *, named: bool = False, done: bool = False) -> str:
    """Server-sent events. named: with their type as `event:`; done: with OpenAI's end."""
    lines = [
        f"event: {value['type']}\ndata: {json.dumps(value)}" if named else f"data: {json.dumps(value)}"
        for value in values
    ]
    return "\n\n".join([*lines, *(["data: [DONE]"] if done else []), ""]) + "\n"


def transcript(name: str) -> Reply:
    """The response of a recorded exchange of a real provider, by the name of its section."""
    if not TRANSCRIPTS.exists():
        pytest.skip(f"no transcripts of providers at {TRANSCRIPTS}")
    section = re.search(rf"^### {name} .*?(?=^### |\Z)", TRANSCRIPTS.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"no section {name}"
    head, _, body = re.findall(r"```http\n(.*?)\n```", section[0], re.DOTALL)[1].partition("\n\n")
    status = int(head.split()[1])
    kind = re.search(r"content-type: (\S+)", head)
    assert kind
    return Reply(body + "\n\n", status, kind[1])
