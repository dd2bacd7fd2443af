"""Traces small enough to reckon with by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from longturn.lab.trace import Blocks, TraceRequest, write_requests


@dataclass
class Listed:
    """A trace in memory."""

    requests: Sequence[TraceRequest]
    unit: int = 1
    name: str = "listed"
    notes: list[str] = field(default_factory=lambda: ["made up for a test"])

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def request(
    session: str,
    prompt: Sequence[int],
    output: Sequence[int] | int = 1,
    *,
    unit: int = 1,
    time: float = 0.0,
    think: float | None = None,
    tokens: int | None = None,
    salt: str = "",
) -> TraceRequest:
    """One request; `output` are token ids, or how many there are."""
    known = not isinstance(output, int)
    return TraceRequest(
        id=f"{session}/{len(prompt)}",
        session=session,
        time=time,
        prompt=Blocks.of(prompt),
        prompt_tokens=len(prompt) * unit if tokens is None else tokens,
        output_tokens=len(output) if not isinstance(output, int) else output,
        output=Blocks.of(np.asarray(output)) if known else None,
        think=think,
        salt=salt,
    )


def chats(sessions: int = 3, turns: int = 3, *, system: int = 40, new: int = 20, answer: int = 5) -> Listed:
    """Sessions in turn over one system prompt. Each prompt is the one before, its answer, and `new` tokens."""
    fresh = iter(range(1000, 1_000_000))
    head = [next(fresh) for _ in range(system)]
    histories = {f"s{n}": list(head) for n in range(sessions)}
    requests = []
    for turn in range(turns):
        for name, history in histories.items():
            history += [next(fresh) for _ in range(new)]
            output = [next(fresh) for _ in range(answer)]
            requests.append(replace(request(name, history, output, time=float(turn)), id=f"{name}.{turn}"))
            history += output
    return Listed(requests)


def written(trace: Listed, folder: Path) -> Path:
    """The trace as a file."""
    path = folder / "trace.jsonl"
    write_requests(trace, path)
    return path
