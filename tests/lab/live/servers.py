"""Servers to load: a small engine with a prefix cache, metrics and token ids of its own, and sockets that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from typing import Any

import fastapi
import uvicorn
from prometheus_client import CollectorRegistry, Counter, generate_latest


class SmallEngine:
    """Answers like vLLM: caches whole prompts and answers, token by token.

    reports: `always`, `hits` (leaves zeros out) or `never`; tells_ids: whether answers come with token ids; slow:
    seconds for each answer; most: the most requests that were in flight at once.
    """

    def __init__(self) -> None:
        self.reports, self.tells_ids, self.slow = "always", True, 0.0
        self.window: int | None = 4096
        self.owner = "vllm"
        self.bodies: list[dict[str, Any]] = []
        self.starts: list[float] = []
        self.sequences: list[list[int]] = []
        self.running = self.most = 0
        registry = CollectorRegistry()
        self._prompt = Counter("vllm:prompt_tokens", "All.", ["model_name"], registry=registry).labels("small")
        self._hits = Counter("vllm:prefix_cache_hits", "Cached.", ["model_name"], registry=registry).labels("small")
        self.metrics: Any = lambda: generate_latest(registry)
        self.keys: list[str | None] = []
        self.app = fastapi.FastAPI(dependencies=[fastapi.Depends(self.note)])
        self.app.get("/v1/models")(self.models)
        self.app.get("/metrics")(self.show_metrics)
        self.app.post("/v1/completions", response_model=None)(self.complete)
        self.app.post("/v1/chat/completions", response_model=None)(self.complete)

    async def note(self, request: fastapi.Request) -> None:
        self.keys.append(request.headers.get("authorization"))

    async def models(self) -> dict[str, Any]:
        window = {"max_model_len": self.window} if self.window else {}
        return {"object": "list", "data": [{"id": "small", "owned_by": self.owner, **window}]}

    async def show_metrics(self) -> fastapi.Response:
        text = self.metrics()
        return fastapi.Response(text, status_code=404 if text is None else 200)

    async def complete(self, body: dict[str, Any] = fastapi.Body()) -> Any:  # noqa: B008
        said = body["prompt"] if "prompt" in body else "".join(one["content"] for one in body["messages"])
        prompt = said if isinstance(said, list) else list(said.encode())
        self.bodies.append(body)
        self.starts.append(time.perf_counter())
        if self.window and len(prompt) + body["max_tokens"] > self.window:
            return fastapi.responses.JSONResponse({"error": {"message": "too long"}}, status_code=400)
        cached = max((shared(prompt, known) for known in self.sequences), default=0)
        cached = min(cached, len(prompt) - 1)
        return fastapi.responses.StreamingResponse(self.events(body, prompt, cached), media_type="text/event-stream")

    async def events(self, body: dict[str, Any], prompt: list[int], cached: int) -> AsyncIterator[str]:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.slow)
        # Unlike any trace's: what the model says is its own affair.
        answer = [(sum(prompt) + 7 * i) % 997 for i in range(body["max_tokens"])]
        text = [f" w{token}" for token in answer]
        for token, word in zip(answer, text, strict=True):
            told = {"token_ids": [token]} if self.tells_ids and body.get("return_token_ids") else {}
            part = {"text": word} if "prompt" in body else {"delta": {"content": word}}
            yield event({"choices": [{**part, **told, "finish_reason": None}]})
        yield event({"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]})
        self.sequences.append(
            prompt + (answer if isinstance(body.get("prompt"), list) else list("".join(text).encode()))
        )
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(answer)}
        if self.reports == "always" or (self.reports == "hits" and cached):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        self._prompt.inc(len(prompt))
        self._hits.inc(cached)
        self.running -= 1
        yield event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"


def shared(one: list[int], other: list[int]) -> int:
    """Length of the common prefix."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


def event(data: Any) -> str:
    """One event of a stream."""
    return f"data: {json.dumps(data)}\n\n"


@contextmanager
def served(app: fastapi.FastAPI) -> Iterator[str]:
    """The URL of `app` on a free port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        running = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        while not running.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@contextmanager
def raw(*answers: bytes, hangs: bool = False) -> Iterator[str]:
    """The URL of a socket that reads each request and sends back exactly these bytes, then closes, or hangs."""
    gone = threading.Event()

    def answer(connection: socket.socket) -> None:
        with closing(connection):
            connection.settimeout(5)
            # All of it: what is closed with something unread in it is reset, and the answer is lost.
            with connection.makefile("rb") as request:
                head = list(takewhile(lambda line: line != b"\r\n", request))
                lengths = [line for line in head if line.lower().startswith(b"content-length")]
                request.read(sum(int(line.split(b":")[1]) for line in lengths))
            for part in answers:
                connection.sendall(part)
            if hangs:
                gone.wait(10)

    def accept(listener: socket.socket) -> None:
        while not gone.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            gone.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
