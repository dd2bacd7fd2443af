"""An upstream whose every byte is scripted, and a real gateway before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from longturn.dialects.engines import metrics_paths
from longturn.gateway import Budget, Options, Upstreams, running
from longturn.gateway.entries import Entries, Entry
from longturn.ledger import RequestLine
from longturn.ledger.book import Book
from longturn.listening import listen, url_of

T = TypeVar("T")


@dataclass
class Seen:
    """A request as it came over the wire."""

    head: bytes
    body: bytes

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}


Script = Callable[[Seen, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """A server of bare sockets: `script` writes what it likes after each request. metrics: its Prometheus page."""

    script: Script
    metrics: Callable[[], str] = lambda: ""
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await _head(reader):
                seen = Seen(head, await _body(head, reader))
                if seen.target in metrics_paths():
                    writer.write(answer_of(self.metrics().encode()))
                else:
                    self.seen.append(seen)
                    await self.script(seen, reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def upstream(script: Script, metrics: Callable[[], str] = lambda: "") -> AsyncIterator[Upstream]:
    made = Upstream(script, metrics)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, backlog=2048)
    made.url = url_of(server.sockets[0])
    try:
        yield made
    finally:
        server.close()


@dataclass
class Gateway:
    url: str
    ledger: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def lines(self) -> list[RequestLine]:
        with Book(self.ledger) as book:
            return list(book.lines())

    def entries(self) -> list[Entry]:
        with Entries(self.ledger) as entries:
            return list(entries.all())

    async def settled(self, count: int) -> list[Entry]:
        """The entries, once there are `count`."""
        return await self._until(self.entries, count)

    async def settled_lines(self, count: int) -> list[RequestLine]:
        """The lines, once there are `count`; each is written after its entry."""
        return await self._until(self.lines, count)

    async def _until(self, read: Callable[[], list[T]], count: int) -> list[T]:
        for _ in range(300):
            if len(found := await asyncio.to_thread(read)) >= count:
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"{len(found)} instead of {count}")


@contextlib.asynccontextmanager
async def gateway(
    folder: Path,
    upstream: str,
    *,
    budget: str | None = None,
    prices: str | None = None,
    content: bool = False,
) -> AsyncIterator[Gateway]:
    ledger = f"sqlite:///{folder / 'gateway.db'}"
    options = Options(
        Upstreams(upstream), ledger, Budget.read(budget) if budget else None, prices=prices, content=content
    )
    with listen("127.0.0.1", 0) as sock:
        async with running(options, sock):
            yield Gateway(url_of(sock), ledger)


async def raw(port: int, request: bytes) -> bytes:
    """What comes back on a connection of its own, until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


def post(path: str, body: bytes | dict[str, Any], *headers: str, close: bool = True) -> bytes:
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", f"Content-Length: {len(data)}", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + data


def unchunked(answer: bytes) -> tuple[bytes, bool]:
    """The body of a chunked answer, and whether its end came."""
    rest = answer.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return body, True
        body, rest = body + rest[:length], rest[length + 2 :]
    return body, False


def answer_of(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer as bytes."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


async def _head(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(asyncio.IncompleteReadError):
        return await reader.readuntil(b"\r\n\r\n")
    return b""


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    headers = Seen(head, b"").headers
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return body


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
