"""A server with a perfect prefix cache, as a process: `python fake_engine.py PORT`."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile

PROMPTS: list[list[int]] = []
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, tokens = body["prompt"], body["max_tokens"]
        with LOCK:
            cached = max((common(prompt, earlier) for earlier in PROMPTS), default=0)
            PROMPTS.append(prompt)
            time.sleep((len(prompt) - cached) * 1e-5)
        self.send_response(200)
        self.end_headers()
        for _ in range(tokens):
            self.event({"choices": [{"text": "x", "finish_reason": None}]})
            time.sleep(1e-3)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": tokens}
        usage |= {"prompt_tokens_details": {"cached_tokens": min(cached, len(prompt) - 1)}}
        self.event({"choices": [{"text": "", "finish_reason": "length"}], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: object) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
