"""What goes in comes out, to the byte, in both directions, whatever it is."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from pathlib import Path

import pytest

from tests.gateway.rig import Seen, answer_of, free_port, gateway, post, raw, unchunked, upstream

STREAM = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def test_bodies_and_headers_pass_unchanged(tmp_path: Path) -> None:
    sent = b'{ "model":"m",\n "messages" : [{"content":"\\u00e9 \xc3\xa9","role":"user"}], "messages":[] }'
    back = gzip.compress(b'{"usage": {"prompt_tokens": 3},  "x":1}')
    kept = ("X-Odd-NAME: a,  b", "Content-Type: application/json", "Content-Encoding: gzip", "x-request-id: r1")

    async def script(seen: Seen, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of(back, *kept, "Keep-Alive: timeout=5", "Connection: keep-alive, x-hop", "X-Hop: 1"))

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        target = "/v1/chat/completions?a=%2F..%2f&b=a+b%20c&&x"
        named = ("Content-Type: application/json; charset=x", "accept-encoding: gzip", "X-Mixed-Case: Yes")
        dropped = ("TE: trailers", "Proxy-Authorization: secret")
        request = post(target, sent, "Authorization: Bearer k", *named, *dropped, close=False)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(back)) == back
        writer.close()
        (entry,) = await proxy.settled(1)
    (seen,) = server.seen
    assert seen.body == sent
    assert seen.target == target
    assert b"X-Mixed-Case: Yes\r\n" in seen.head
    assert {"te", "proxy-authorization"}.isdisjoint(seen.headers)
    # Nothing is added: no user agent, no accepted types.
    assert set(seen.headers) == {
        "host", "content-length", "authorization", "content-type", "accept-encoding", "x-mixed-case"
    }  # fmt: skip
    assert seen.headers["host"] == server.url.removeprefix("http://")
    for line in kept:
        assert line.encode() + b"\r\n" in head
    # Hop-by-hop headers end here, and nothing is added on this side either.
    assert sorted(line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]) == sorted(
        [b"x-odd-name", b"content-type", b"content-encoding", b"x-request-id", b"content-length"]
    )
    assert entry.sent_bytes == len(sent)
    assert entry.got_bytes == len(back)


async def test_a_stream_is_not_held_back(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM.encode() + chunk(EVENT))
        await go_on.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(post("/v1/chat/completions", {"model": "m", "messages": []}))
        got = await asyncio.wait_for(reader.readuntil(b"}\n\n"), 10)
        assert EVENT in got
        go_on.set()
        assert b"data: [DONE]" in await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def test_half_an_event_and_a_reset_are_passed_on_and_recorded(tmp_path: Path) -> None:
    half = EVENT + b'data: {"choices":[{"ind'

    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM.encode() + chunk(half))
        await writer.drain()
        await asyncio.sleep(0.2)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answer = await raw(proxy.port, post("/v1/chat/completions", {"model": "m", "messages": []}, close=False))
        (entry,) = await proxy.settled(1)
    assert unchunked(answer) == (half, False)
    assert (entry.outcome, entry.garbled, entry.ended, entry.status) == ("broken", 1, False, 200)


async def test_nothing_is_lost_before_a_break_that_a_slow_client_has_not_come_to(tmp_path: Path) -> None:
    pieces = [bytes([65 + number % 26]) * 1000 for number in range(6000)]

    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM.encode() + b"".join(map(chunk, pieces)))
        await writer.drain()
        writer.close()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        sock = socket.create_connection(("127.0.0.1", proxy.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.sendall(post("/v1/chat/completions", {"model": "m", "messages": []}, close=False))
        answer = b""
        while piece := await asyncio.to_thread(sock.recv, 1 << 16):
            answer += piece
            await asyncio.sleep(0.003)
        sock.close()
        (entry,) = await proxy.settled(1)
    body, ended = unchunked(answer)
    assert not ended
    assert body == b"".join(pieces)
    assert (entry.outcome, entry.got_bytes) == ("broken", len(body))


async def test_an_answer_that_is_too_short_stays_too_short(tmp_path: Path) -> None:
    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        writer.close()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answer = await raw(proxy.port, post("/v1/messages", {"model": "m", "messages": []}, close=False))
        (entry,) = await proxy.settled(1)
    assert b"Content-Length: 100\r\n" in answer
    assert answer.endswith(b"\r\n\r\n{")
    assert entry.outcome == "broken"


@pytest.mark.parametrize("garbage", [b"\x00\xff\xfe not http", b"", b"HTTP/1.1 abc\r\n\r\n"])
async def test_no_answer_at_all_is_an_error_in_the_providers_shape(tmp_path: Path, garbage: bytes) -> None:
    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()
        writer.close()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answers = [
            await raw(proxy.port, post(path, {"model": "m"}))
            for path in ("/v1/chat/completions", "/v1/messages", "/v1beta/models/m:generateContent")
        ]
        entries = await proxy.settled(3)
    assert all(answer.startswith(b"HTTP/1.1 502 ") for answer in answers)
    openai, anthropic, gemini = (json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers)
    assert openai["error"]["code"] == "upstream_unreachable"
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "api_error")
    assert (gemini["error"]["code"], gemini["error"]["status"]) == (502, "INTERNAL")
    assert [(entry.outcome, entry.status) for entry in entries] == [("unreachable", None)] * 3


async def test_garbage_in_a_stream_passes(tmp_path: Path) -> None:
    garbage = b"data: {nonsense\n\n\xff\xfe\x00: what\r\n\r\ndata: [1,2]\n\nevent: x\ndata: \n\n" + EVENT

    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM.encode() + chunk(garbage) + chunk(b""))

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answer = await raw(proxy.port, post("/v1/chat/completions", b"\xff not json", close=True))
        (entry,) = await proxy.settled(1)
    assert unchunked(answer) == (garbage, True)
    assert (entry.outcome, entry.garbled, entry.ended) == ("complete", 2, False)
    assert entry.trouble == "the request is not JSON"


async def test_a_client_that_leaves_cancels_upstream(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def script(_: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM.encode() + chunk(EVENT))
        # A stall: nothing comes any more until the connection is closed.
        assert await reader.read(1) == b""
        gone.set()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(post("/v1/chat/completions", {"model": "m", "messages": []}))
        await reader.readuntil(b"}\n\n")
        await asyncio.sleep(0.3)
        writer.close()
        await asyncio.wait_for(gone.wait(), 5)
        (entry,) = await proxy.settled(1)
    assert entry.outcome == "client_left"
    assert entry.silence_ms > 250


async def test_a_client_that_leaves_before_any_answer_cancels_upstream(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def script(_: Seen, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        assert await reader.read(1) == b""
        gone.set()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(post("/v1/messages", {"model": "m", "messages": []}))
        while not server.seen:
            await asyncio.sleep(0.01)
        writer.close()
        await asyncio.wait_for(gone.wait(), 5)
        (entry,) = await proxy.settled(1)
    assert (entry.outcome, entry.status) == ("client_left", None)


async def test_chunked_requests_pass(tmp_path: Path) -> None:
    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of(b"{}", "Content-Type: application/json"))

    body = b'{"model":"m","messages":[]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answer = await raw(proxy.port, head + chunk(body[:5]) + chunk(body[5:]) + chunk(b""))
        await proxy.settled(1)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert server.seen[0].body == body


async def test_other_paths_pass_without_a_line(tmp_path: Path) -> None:
    async def script(seen: Seen, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = (
            b"Content-Length: 11\r\n" if seen.head.startswith(b"HEAD") else b"Content-Length: 0\r\nLocation: /else\r\n"
        )
        writer.write(b"HTTP/1.1 307 Elsewhere\r\n" + length + b"Set-Cookie: a=b\r\nSet-Cookie: c=d\r\n\r\n")

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        get = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await raw(proxy.port, get)
        head = await raw(proxy.port, get.replace(b"GET", b"HEAD"))
        other = await raw(proxy.port, get.replace(b"/v1", b"http://other.example/v1"))
    assert answer.startswith(b"HTTP/1.1 307 Elsewhere\r\n")
    assert b"Set-Cookie: a=b\r\nSet-Cookie: c=d\r\n" in answer
    assert b"Content-Length: 11\r\n" in head
    assert other.startswith(b"HTTP/1.1 400 ")
    assert [seen.target for seen in server.seen] == ["/v1/models", "/v1/models"]
    assert proxy.entries() == []


async def test_nobody_listens_upstream(tmp_path: Path) -> None:
    async with gateway(tmp_path, f"http://127.0.0.1:{free_port()}") as proxy:
        answer = await raw(proxy.port, post("/v1/chat/completions", {"model": "m"}))
        (entry,) = await proxy.settled(1)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert entry.outcome == "unreachable"


async def test_odd_answers_pass(tmp_path: Path) -> None:
    async def script(seen: Seen, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match seen.target.rpartition("?")[2]:
            case "hints":
                writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer_of(b"{}"))
            case "long":
                writer.write(answer_of(b"{}", "X-Long: " + "a" * 30_000))
            case "empty":
                writer.write(b"HTTP/1.1 204 No Content\r\nX-A: caf\xc3\xa9\r\n\r\n")
            case "until-the-end":
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"a": 1}')
                await writer.drain()
                writer.close()

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answers = {
            name: await raw(proxy.port, post(f"/v1/messages?{name}", b"[" * 50_000, "Authorization: " + "k" * 20_000))
            for name in ("hints", "long", "empty", "until-the-end")
        }
        await proxy.settled(4)
    assert answers["hints"].startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"a" * 30_000 in answers["long"]
    assert "café".encode() in answers["empty"]
    assert unchunked(answers["until-the-end"]) == (b'{"a": 1}', True)
    assert all(seen.headers["authorization"] == "k" * 20_000 for seen in server.seen)


async def test_large_requests_pass_as_they_come(tmp_path: Path) -> None:
    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of(b"{}"))

    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * (5 << 20)}]}).encode()
    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        await raw(proxy.port, post("/v1/messages", body))
        (entry,) = await proxy.settled(1)
    assert server.seen[0].body == body
    assert "transfer-encoding" not in server.seen[0].headers
    assert (entry.sent_bytes, entry.segments) == (len(body), 1)


async def test_what_is_no_request_leaves_nothing_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9") as proxy:
        answer = await raw(proxy.port, b"POST / HTTP/1.1\r\nAuthorization: sk-secret\r\nsk-secret\r\n\r\n")
    assert answer.startswith(b"HTTP/1.")
    assert b" 400 " in answer
    assert "sk-secret" not in caplog.text


async def test_a_body_that_is_none_is_refused(tmp_path: Path) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def script(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of(b"{}"))

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        answer = await raw(proxy.port, head + b"nonsense\r\n")
        assert (await raw(proxy.port, post("/v1/messages", {"model": "m"}))).startswith(b"HTTP/1.1 200 ")
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 502"))
