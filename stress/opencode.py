"""The real opencode, headless and offline, and a script that stands in for what a tiny model would say to it.

It needs opencode's binary, which is one file, and no network. To get it:

    npm pack opencode-linux-x64@1.18.33
    tar xzf opencode-linux-x64-1.18.33.tgz
    OPENCODE=$PWD/package/bin/opencode python -m pytest stress/test_opencode.py
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from longturn.engine import EngineService
from longturn.engine.sampling import Sampled, SampleState

OPENCODE = os.environ.get("OPENCODE") or shutil.which("opencode")
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


@dataclass
class Talk:
    """A session of a served opencode, which works in the folder `project`."""

    client: httpx.Client
    project: Path
    session: str

    def say(self, text: str) -> dict[str, Any]:
        """One turn, with all the requests that it takes."""
        body = {"model": {"providerID": "local", "modelID": "tiny"}, "parts": [{"type": "text", "text": text}]}
        answer = self.client.post(f"/session/{self.session}/message", json=body)
        reply: dict[str, Any] = answer.raise_for_status().json()
        assert reply["info"].get("error") is None
        return reply

    def tools(self) -> list[tuple[str, str]]:
        """The tools that were called, and how that ended."""
        history = self.client.get(f"/session/{self.session}/message").json()
        parts = [part for message in history for part in message["parts"] if part["type"] == "tool"]
        return [(part["tool"], part["state"]["status"]) for part in parts]


def said(reply: dict[str, Any]) -> str:
    """The text of a reply."""
    return "".join(part["text"] for part in reply["parts"] if part["type"] == "text")


@contextmanager
def opencode(folder: Path, url: str, wire: str) -> Iterator[Talk]:
    """A session whose only provider is at `url`. folder: empty, for the project and for all that opencode keeps."""
    assert OPENCODE
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    (project / "notes.txt").write_text(f"{SECRET}\n")
    model = {"name": "tiny", "tool_call": True, "limit": {"context": CONTEXT, "output": 2000}}
    provider = {
        "npm": PACKAGES[wire],
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
            _wait(lambda: client.get("/global/health", timeout=3).is_success)
            yield Talk(client, project, client.post("/session", json={}).json()["id"])
    finally:
        # It may take a signal to end for half a minute; there is nothing to lose.
        process.kill()
        process.wait()
        log.close()


def _wait(ready: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError("opencode did not start")
