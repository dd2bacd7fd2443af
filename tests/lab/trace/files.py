"""Small trace files for the tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longturn.lab.trace import TraceRequest

SHARED = Path(__file__).resolve().parents[4] / "shared"


def write_lines(path: Path, records: Iterable[Any], *, packed: bool = False) -> Path:
    """One JSON value a line; strings are written as they are."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def write_json(path: Path, value: Any) -> Path:
    """One JSON value over many lines."""
    path.write_text(json.dumps(value, indent=2))
    return path


def prompt_ids(request: TraceRequest) -> list[int]:
    return request.prompt.ids().tolist()


def output_ids(request: TraceRequest) -> list[int]:
    assert request.output is not None
    return request.output.ids().tolist()


def goes_on(request: TraceRequest, following: TraceRequest) -> bool:
    """Whether the following prompt begins with this prompt and its answer."""
    both = prompt_ids(request) + output_ids(request)
    return prompt_ids(following)[: len(both)] == both


TOKENS = {"id": 7, "session": "a", "t": 1.5, "tokens": [5, 6, 7], "output": [8, 9]}
HASHES = {"timestamp": 2500, "input_length": 1100, "output_length": 10, "hash_ids": [0, 1, 2]}
CHAT = {"messages": [{"role": "user", "content": "hello there"}]}


def weka_call(t: float, n_in: int, n_out: int, runs: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": n_in, "out": n_out, "hash_runs": runs, **more}


def weka_session(name: str, requests: list[Any], tool_tokens: int = 0, system_tokens: int = 0) -> dict[str, Any]:
    return {
        "id": name,
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": tool_tokens,
        "system_tokens": system_tokens,
        "requests": requests,
    }


WEKA = weka_session("s", [weka_call(0, 130, 5, [1, 2])])
STRUCTURE = {
    "session": "s",
    "entries": [
        {"t": "2026-01-01T10:00:00Z", "role": "user", "parts": [{"kind": "text", "chars": 28, "id": "aa"}]},
        {"t": "2026-01-01T10:00:05Z", "role": "assistant", "request": "r", "parts": [{"kind": "text", "chars": 14}]},
    ],
}
CLAUDE_CODE = {
    "type": "user",
    "uuid": "u",
    "sessionId": "s",
    "timestamp": "2026-01-01T10:00:00.000Z",
    "message": {"role": "user", "content": "hello"},
}
TAU_BENCH = [
    {"task_id": 0, "trial": 0, "traj": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]}
]
OPENCODE = {
    "info": {"id": "ses_1"},
    "messages": [
        {
            "info": {"id": "m1", "role": "user", "time": {"created": 1000}},
            "parts": [{"type": "text", "id": "p1", "text": "hi"}],
        },
        {
            "info": {"id": "m2", "role": "assistant", "parentID": "m1", "time": {"created": 2000, "completed": 3000}},
            "parts": [{"type": "text", "id": "p2", "text": "yes?"}],
        },
    ],
}
AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"]
