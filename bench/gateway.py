"""What the gateway adds to a request, and a thousand streams at once through it.

    .venv/bin/python bench/gateway.py --json bench/results/gateway.json --docs

An upstream of bare sockets in a process of its own streams numbered events that carry the time at which they were sent;
the client here checks every byte. Latencies are measured directly and through the gateway, in turn. Takes about a
minute; the exit status is 1 if a byte was lost or out of place, or a request is not in the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longturn.gateway.server import allow_many_connections
from longturn.ledger.book import Book

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    'data: {"id":"%s","model":"bench","choices":[{"index":0,"delta":{"content":"%d %.6f"},"finish_reason":null}]}\n\n'
)
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n'
DONE = "data: [DONE]\n\n"
STAMP = re.compile(rb'"content":"(\d+) ([\d.]+)"')
BODY_BYTES = 20_000
TIMEOUT = 120.0
PAGE = Path(__file__).parent.parent / "docs" / "gateway.md"
BLOCK = re.compile(r"(<!-- measured: bench/gateway.py -->\n).*?(<!-- end -->)", re.DOTALL)


async def _upstream() -> None:
    """Streams as many events as the request's query says, so far apart."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if not head.startswith("POST"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                await reader.readexactly(int(re.search(r"(?i)content-length: (\d+)", head)[1]))
                name, events, gap = re.search(r"\?(\w+),(\d+),([\d.]+)", head).groups()
                writer.write(HEAD)
                for number in range(int(events)):
                    _chunk(writer, EVENT % (name, number, time.monotonic()))
                    await writer.drain()
                    await asyncio.sleep(float(gap))
                _chunk(writer, USAGE % (1000, int(events)) + DONE)
                writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(f"{len(text):x}\r\n{text}\r\n".encode())


@dataclass
class Connection:
    """A connection that is kept, on which one stream after the other is asked for."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def stream(self, name: str, events: int, gap: float) -> tuple[float, list[float]]:
        """Seconds to the first event, and each event's way; raises AssertionError if any byte is not as it was sent."""
        content = name + "x" * BODY_BYTES
        body = json.dumps(
            {"model": "bench", "stream": True, "messages": [{"role": "user", "content": content}]}
        ).encode()
        began = time.monotonic()
        self.writer.write(
            f"POST /v1/chat/completions?{name},{events},{gap} HTTP/1.1\r\nHost: bench\r\nx-api-key: bench\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK"), head
        got, stamps, ways, first = b"", [], [], 0.0
        while size := int(await self.reader.readline(), 16):
            piece = await self.reader.readexactly(size + 2)
            now = time.monotonic()
            first = first or now - began
            found = STAMP.findall(piece)
            stamps += [float(sent) for _, sent in found]
            ways += [now - float(sent) for _, sent in found]
            got += piece[:-2]
        await self.reader.readline()
        sent = "".join(EVENT % (name, number, stamp) for number, stamp in enumerate(stamps))
        assert got == (sent + USAGE % (1000, events) + DONE).encode(), f"stream {name} is not as it was sent"
        assert len(stamps) == events
        return first, ways

    def close(self) -> None:
        self.writer.close()


async def added(direct: int, through: int, rounds: int) -> dict[str, float]:
    """Medians of both ways, measured in turn."""
    firsts: dict[int, list[float]] = {direct: [], through: []}
    ways: dict[int, list[float]] = {direct: [], through: []}
    connections = {port: await Connection.to(port) for port in (direct, through)}
    for number in range(rounds):
        for port, connection in connections.items():
            first, way = await connection.stream(f"l{port}n{number}", 5, 0.002)
            if number >= rounds // 10:
                firsts[port].append(first * 1000)
                ways[port] += [seconds * 1000 for seconds in way]
    for connection in connections.values():
        connection.close()
    median = statistics.median
    return {
        "first_event_direct_ms": round(median(firsts[direct]), 3),
        "first_event_through_ms": round(median(firsts[through]), 3),
        "first_event_added_ms": round(median(firsts[through]) - median(firsts[direct]), 3),
        "event_added_ms": round(median(ways[through]) - median(ways[direct]), 3),
    }


async def many(port: int, streams: int, events: int, gap: float) -> dict[str, Any]:
    """All streams at once, each on a connection of its own."""
    connections = await asyncio.gather(*(Connection.to(port) for _ in range(streams)))
    began = time.monotonic()
    results = await asyncio.gather(
        *(connection.stream(f"s{number}", events, gap) for number, connection in enumerate(connections)),
        return_exceptions=True,
    )
    took = time.monotonic() - began
    failed = [result for result in results if isinstance(result, BaseException)]
    for failure in failed[:3]:
        print(f"failed: {failure!r}", file=sys.stderr)
    ways = sorted(way * 1000 for result in results if not isinstance(result, BaseException) for way in result[1])
    for connection in connections:
        connection.close()
    return {
        "streams": streams,
        "events": len(ways),
        "failed": len(failed),
        "seconds": round(took, 2),
        "event_ms_p50": round(statistics.median(ways), 2) if ways else None,
        "event_ms_p99": round(ways[int(len(ways) * 0.99)], 2) if ways else None,
    }


@contextlib.asynccontextmanager
async def _process(*command: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _peaks(pid: int) -> Iterator[int]:
    """Most resident bytes so far of a process and of its children."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        yield int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _peaks(int(child))


async def measure(streams: int, events: int, gap: float, rounds: int) -> dict[str, Any]:
    """Everything."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        ledger = f"sqlite:///{folder}/bench.db"
        me = [sys.executable, __file__, "upstream"]
        async with _process(*me, stdout=subprocess.PIPE) as upstream:
            direct = int(await upstream.stdout.readline())
            command = [sys.executable, "-c", "from longturn.cli import app; app()", "gateway", "--port", "0"]
            command += ["--upstream", f"http://127.0.0.1:{direct}", "--ledger", ledger]
            async with _process(*command, stderr=subprocess.PIPE) as gateway:
                through = int(re.search(rb":(\d+),", await gateway.stderr.readline())[1])
                latency = await added(direct, through, rounds)
                idle = list(_peaks(gateway.pid))
                load = await many(through, streams, events, gap)
                peaks = list(_peaks(gateway.pid))
        with Book(ledger) as book:
            lines = list(book.lines())
        counted = [line for line in lines if line.use.logical == 1000 and line.finish_reason is None]
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "cpus": os.cpu_count(),
            "load_before": load_before,
            "nice": os.nice(0),
            "latency": latency,
            "load": load,
            "memory_mib": {"idle": [n >> 20 for n in idle], "peak": [n >> 20 for n in peaks]},
            "lines": len(lines),
            "lines_expected": rounds + streams,
            "lines_with_usage": len(counted),
        }


def write_docs(result: dict[str, Any]) -> None:
    """The figures as a table in docs/gateway.md."""
    latency, load, memory = result["latency"], result["load"], result["memory_mib"]
    rows = [
        ("a request's first event later by, median", f"{latency['first_event_added_ms']:.2f} ms"),
        ("each further event later by, median", f"{latency['event_added_ms']:.2f} ms"),
        (f"{load['streams']:,} streams at once: events, lost or out of place", f"{load['events']:,}, {load['failed']}"),
        (
            "an event's way through at that load, median and p99",
            f"{load['event_ms_p50']} and {load['event_ms_p99']} ms",
        ),
        ("memory of proxy and accountant, at rest", " and ".join(f"{n} MiB" for n in memory["idle"])),
        ("the same at that load, at most", " and ".join(f"{n} MiB" for n in memory["peak"])),
        ("requests, and lines in the ledger", f"{result['lines_expected']:,}, {result['lines']:,}"),
    ]
    note = (
        f"Measured on {result['date'][:10]} by `bench/gateway.py`: {result['cpus']} cores shared by client, upstream, "
        f"gateway and others (load {result['load_before']:.1f} before; nice {result['nice']}). "
        "The streams begin at the same instant, which is what their slowest events wait for."
    )
    table = "\n".join(["|  |  |", "| --- | ---: |", *(f"| {name} | {value} |" for name, value in rows)])
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}{note}\n\n{table}\n{match[2]}", text), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("all", "upstream"), default="all", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--gap", type=float, default=0.25, help="seconds between two events of a stream")
    parser.add_argument("--rounds", type=int, default=300, help="requests for the latency, each way")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/gateway.md")
    given = parser.parse_args()
    allow_many_connections()
    if given.what == "upstream":
        asyncio.run(_upstream())
        return 0
    work = measure(given.streams, given.events, given.gap, given.rounds)
    result = asyncio.run(asyncio.wait_for(work, TIMEOUT))
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")
    if given.docs:
        write_docs(result)
    whole = result["lines"] == result["lines_with_usage"] == result["lines_expected"]
    return int(bool(result["load"]["failed"]) or not whole)


if __name__ == "__main__":
    sys.exit(main())
