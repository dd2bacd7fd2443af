"""One request over a real socket, whatever is at its other end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from longturn.lab.wire import Answer, Limit, Reply, client, send
from tests.lab.live.servers import HEAD, SmallEngine, event, raw, served


async def ask(
    url: str, *, seconds: float = 5.0, body: Any = None, path: str = "/v1/completions"
) -> tuple[Reply, Answer]:
    reply = Reply({}, 3)
    async with client(url) as http:
        answer = await send(
            http, path, body or {}, reply, time.perf_counter, Limit(seconds, f"--timeout {seconds:g} s")
        )
    return reply, answer


def text(word: str, reason: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"text": word, "finish_reason": reason}], **more}).encode()


DONE = b"data: [DONE]\n\n"


async def test_an_answer() -> None:
    small = SmallEngine()
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True}
    with served(small.app) as url:
        reply, answer = await ask(url + "/v1/", body=body)
        again, _ = await ask(url, body=body)
    assert (reply.outcome, reply.error) == ("ok", None)
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached_tokens) == (3, 4, 0)
    assert again.cached_tokens == 2
    assert answer.ids == [18, 25, 32, 39]
    assert answer.text == " w18 w25 w32 w39"
    assert len(reply.arrivals_s) == 4
    assert reply.ended_s is not None
    assert reply.started_s < reply.arrivals_s[0] <= reply.ended_s


async def test_not_reported_is_not_zero() -> None:
    small = SmallEngine()
    small.reports = "never"
    with served(small.app) as url:
        reply, _ = await ask(url, body={"prompt": [1, 2], "max_tokens": 1})
    assert (reply.outcome, reply.cached_tokens) == ("ok", None)


async def test_the_first_token_of_a_chat_is_its_first_text() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}).encode()
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]}).encode()
    said = event({"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}).encode()
    with raw(HEAD, role, thought, said, DONE) as url:
        reply, answer = await ask(url)
    assert (reply.outcome, len(reply.arrivals_s), answer.text) == ("ok", 2, "yes")


async def test_token_ids_in_logprobs() -> None:
    shown = {"text": "a", "logprobs": {"content": [{"id": 30, "token": "a"}]}, "finish_reason": None}
    with raw(HEAD, event({"choices": [shown]}).encode(), text("", "length"), DONE) as url:
        _, answer = await ask(url)
    assert answer.ids == [30]


async def test_lines_end_where_the_standard_says() -> None:
    # Inside a JSON text U+2028 and U+0085 may stand as they are; and lines may end in CR LF or CR.
    word = "a\u2028b\u0085c"
    stream = f'data: {{"choices":[{{"text":"{word}","finish_reason":"stop"}}]}}\r\n\r\ndata: [DONE]\r\r'.encode()
    with raw(HEAD, stream[:30], stream[30:]) as url:
        reply, answer = await ask(url)
    assert (reply.outcome, answer.text) == ("ok", word)


async def test_a_stream_may_end_without_done_if_the_answer_is_complete() -> None:
    with raw(HEAD, text("a"), text("", "stop")) as url:
        reply, _ = await ask(url)
    assert reply.outcome == "ok"


ERROR = event({"error": {"message": "out of pages"}}).encode()
FAILURES = [
    ("http 500", "engine is dead", [b"HTTP/1.1 500 Oh\r\nContent-Length: 14\r\n\r\nengine is dead"]),
    ("http 302", "HTTP 302", [b"HTTP/1.1 302 There\r\nLocation: http://example.com\r\nContent-Length: 0\r\n\r\n"]),
    ("disconnected", "RemoteProtocolError", []),
    ("disconnected", "RemoteProtocolError", [b"SSH-2.0-OpenSSH_9\r\n"]),
    ("disconnected", "after 0 chunks", [HEAD]),
    ("disconnected", "after 2 chunks", [HEAD, text("a"), text("b")]),
    ("disconnected", "RemoteProtocolError", [HEAD.replace(b"close", b"x\r\nContent-Length: 900"), text("a")]),
    ("disconnected", "after 0 chunks", [HEAD, DONE]),
    ("garbage", "cannot be read", [HEAD, text("a"), b"data: {oh no\n\n"]),
    ("garbage", "cannot be read", [HEAD, b'data: {"choices": 5}\n\n']),
    ("garbage", "cannot be read", [HEAD, b'data: {"choices": [{"text": "\xff"}]}\n\n']),
    ("garbage", "cannot be read", [HEAD, b"data: " + b"[" * 100_000 + b"\n\n"]),
    ("garbage", "cannot be read", [HEAD, text("a", "stop", usage={"prompt_tokens": "many"})]),
    ("server error", "out of pages", [HEAD, text("a"), ERROR, DONE]),
]


@pytest.mark.parametrize(("outcome", "told", "parts"), FAILURES, ids=range(len(FAILURES)))
async def test_what_fails_is_told(outcome: str, told: str, parts: list[bytes]) -> None:
    with raw(*parts) as url:
        reply, _ = await ask(url)
    assert reply.outcome == outcome
    assert told in (reply.error or "")
    assert reply.ended_s is not None


@pytest.mark.parametrize("parts", [[], [HEAD, text("a")]], ids=["at once", "after a token"])
async def test_a_server_that_hangs(parts: list[bytes]) -> None:
    with raw(*parts, hangs=True) as url:
        reply, answer = await ask(url, seconds=0.2)
    assert reply.outcome == "timeout"
    assert reply.error == f"timed out (--timeout 0.2 s) after {len(parts) // 2} chunks"
    assert answer.text == "a" * (len(parts) // 2)


async def test_the_end_of_the_run_is_no_timeout() -> None:
    reply = Reply({}, 3)
    with raw(hangs=True) as url:
        async with client(url) as http:
            await send(http, "/v1/completions", {}, reply, time.perf_counter, Limit(0.1, "--duration", cut=True))
    assert (reply.outcome, reply.error) == ("cut", "timed out (--duration) after 0 chunks")


async def test_nobody_there() -> None:
    reply, _ = await ask("http://127.0.0.1:9")
    assert reply.outcome == "refused"


async def test_being_cancelled_is_raised() -> None:
    reply = Reply({}, 3)
    with raw(HEAD, text("a"), hangs=True) as url:
        async with client(url) as http:
            limit = Limit(5.0, "--timeout 5 s")
            sending = asyncio.create_task(send(http, "/v1/completions", {}, reply, time.perf_counter, limit))
            while not reply.arrivals_s:
                await asyncio.sleep(0.005)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
    assert (reply.outcome, reply.ended_s) == ("interrupted", None)


async def test_the_key_goes_with_every_request() -> None:
    seen = []
    async with client("http://127.0.0.1:1/v1", api_key="secret") as http:
        seen.append(http.build_request("GET", "/metrics"))
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert str(seen[0].url) == "http://127.0.0.1:1/metrics"
