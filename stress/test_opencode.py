"""The real opencode holds a conversation with tool calls on our server, over each wire that it speaks.

It needs opencode's binary, which is one file, and no network. To get it:

    npm pack opencode-linux-x64@1.18.33
    tar xzf opencode-linux-x64-1.18.33.tgz
    OPENCODE=$PWD/package/bin/opencode python -m pytest stress/test_opencode.py

The engine and its cache are real and the model is tiny; a script stands in for what it would say.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from longturn.engine import EngineService
from longturn.engine.sampling import Sampled, SampleState
from longturn.serve import create_app, in_background
from tests.serve.conftest import tiny_options
from tests.tiny_model import build_tiny_model

OPENCODE = os.environ.get("OPENCODE") or shutil.which("opencode")
pytestmark = pytest.mark.skipif(OPENCODE is None, reason="needs opencode: its docstring says how to get it")

PACKAGES = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
}
CONTEXT = 65536
SECRET = "The ferry leaves at noon."


class Script:
    """Says what the newest message asks for: a tool call to read a file, what the file says, or a greeting."""

    def __init__(self, service: EngineService) -> None:
        self._tokenizer = service.tokenizer
        self._eos = service.built.engine.eos_ids[0]
        self._replies: dict[int, list[int]] = {}

    def sample(self, logits: Any, states: Sequence[SampleState]) -> list[Sampled]:
        return [Sampled(self._next(state)) for state in states]

    def _next(self, state: SampleState) -> int:
        if not state.output_ids or id(state) not in self._replies:
            prompt = self._tokenizer.decode(state.prompt_ids, skip_special_tokens=False)
            self._replies[id(state)] = [*self._tokenizer(self._reply(prompt)).input_ids, self._eos]
        return self._replies[id(state)][len(state.output_ids)]

    def _reply(self, prompt: str) -> str:
        *_, newest, _ = prompt.replace("<|im_end|>", "").split("<|im_start|>")
        if SECRET in newest and "<tool_response>" in newest:
            return "It says that the ferry leaves at noon."
        if "READ " in newest:
            path = newest.split("READ ")[1].split()[0].strip('"')
            call = {"name": "read", "arguments": {"filePath": path}}
            return f"I look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        return "Hello."


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineService]:
    folder = build_tiny_model(tmp_path_factory.mktemp("tiny"), layers=1, context=CONTEXT)
    service = EngineService.start(tiny_options(folder, device_tokens=3 * CONTEXT, host_bytes=0))
    service.built.engine.sampler = Script(service)
    yield service
    service.check_integrity()
    service.close()


@contextmanager
def opencode(home: Path, project: Path, url: str, package: str) -> Iterator[httpx.Client]:
    """A served opencode in `project`, whose only provider is our server."""
    model = {"name": "tiny", "tool_call": True, "limit": {"context": CONTEXT, "output": 2000}}
    provider = {
        "npm": package,
        "name": "Longturn",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"tiny": model},
    }
    config = {
        "model": "local/tiny",
        "small_model": "local/tiny",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["local"],
        "provider": {"local": provider},
    }
    (project / "opencode.json").write_text(json.dumps(config))
    off = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "CLAUDE_CODE", "EXTERNAL_SKILLS")
    environment = {
        "PATH": os.environ["PATH"],
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG", "STATE")},
        **{f"OPENCODE_DISABLE_{what}": "1" for what in off},
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert OPENCODE
    log = (home / "log").open("wb")
    process = subprocess.Popen(
        [OPENCODE, "serve", "--print-logs", "--hostname", "127.0.0.1", "--port", str(port)],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            wait(lambda: client.get("/global/health", timeout=3).is_success)
            yield client
    finally:
        # It may take a signal to end for half a minute; there is nothing to lose.
        process.kill()
        process.wait()
        log.close()


def wait(ready: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError("opencode did not start")


def texts(reply: dict[str, Any]) -> str:
    return "".join(part["text"] for part in reply["parts"] if part["type"] == "text")


@pytest.mark.parametrize("wire", PACKAGES)
def test_a_session_with_tool_calls(tmp_path: Path, service: EngineService, wire: str):
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / "notes.txt").write_text(f"{SECRET}\n")
    with (
        in_background(create_app(service), service) as url,
        opencode(home, project, url, PACKAGES[wire]) as client,
    ):
        session = client.post("/session", json={}).json()["id"]

        def say(text: str) -> dict[str, Any]:
            body = {
                "model": {"providerID": "local", "modelID": "tiny"},
                "parts": [{"type": "text", "text": text}],
            }
            reply: dict[str, Any] = client.post(f"/session/{session}/message", json=body).raise_for_status().json()
            assert reply["info"].get("error") is None
            return reply

        first = say("hello")
        assert texts(first) == "Hello."
        second = say(f"READ {project / 'notes.txt'}")
        assert "leaves at noon" in texts(second)
        third = say("thanks")
        assert texts(third) == "Hello."
        history = client.get(f"/session/{session}/message").json()
    tools = [part for message in history for part in message["parts"] if part["type"] == "tool"]
    assert [(part["tool"], part["state"]["status"]) for part in tools] == [("read", "completed")]
    fixed = first["info"]["tokens"]
    whole = fixed["input"] + fixed["cache"]["read"] + fixed["cache"]["write"]
    for reply in (second, third):
        # All of the turn before is found again, but for a few tokens at its end.
        assert reply["info"]["tokens"]["cache"]["read"] > 0.95 * whole
