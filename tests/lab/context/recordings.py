"""Small structure files of our own, with times, lengths and usage that can be reckoned in the head."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from longturn.lab.context.rates import Fitted, Rates

START = datetime(2026, 1, 5, 12, tzinfo=UTC)
MODEL = "claude-sonnet-4-6"  # at least 1,024 tokens are cached
EVERY = Rates(result=1.0, call=1.0, text=1.0, reasoning=1.0)
PLAIN = Fitted(EVERY, head=0, after=0, shared=0, static=0, hour_from=None, sessions=1)
"""A character is a token, nothing stands before the first message, entries live five minutes."""


def part(kind: str, chars: int, id: str | None = None, **more: Any) -> dict[str, Any]:
    """One part."""
    return {"kind": kind, "chars": chars, **({"id": id} if id else {}), **more}


class Recording:
    """Sessions as they are written down, one entry after the other. Times in seconds from START."""

    def __init__(self, *names: str) -> None:
        self.sessions: list[dict[str, Any]] = [{"session": name, "entries": []} for name in names or ("s",)]

    def _add(self, time: float, session: int, **entry: Any) -> None:
        at = START + timedelta(seconds=time)
        self.sessions[session]["entries"].append({"t": at.isoformat(), **entry})

    def user(self, time: float, *parts: dict[str, Any], session: int = 0, **more: Any) -> None:
        self._add(time, session, role="user", parts=list(parts), **more)

    def answer(
        self,
        time: float,
        request: str,
        *parts: dict[str, Any],
        session: int = 0,
        usage: tuple[int, int, int] | None = None,
        model: str = MODEL,
    ) -> None:
        """usage: input, cache read and cache write as Anthropic reports them."""
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        told = {"usage": dict(zip(names, usage, strict=True))} if usage else {}
        self._add(time, session, role="assistant", request=request, model=model, parts=list(parts), **told)

    def compacted(self, time: float, chars: int, session: int = 0) -> None:
        self._add(time, session, role="system", event="compact_boundary")
        self.user(time, part("text", chars, f"summary {time}"), session=session, isCompactSummary=True)

    def write(self, folder: Path, name: str = "sessions.jsonl.gz") -> Path:
        path = folder / name
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, self.sessions)).encode()))
        return path


def read_file(recording: Recording, time: float, call: str, file: str, chars: int, content: str, request: str) -> None:
    """The agent reads a file: a call of 10 characters, and its result a second later."""
    recording.answer(time, request, part("tool_use", 10, f"call {call}", tool="Read", call=call, file=file))
    recording.user(time + 1, part("tool_result", chars, content, call=call))
