"""Trajectories as tau-bench publishes them: one JSON array of conversations with full text.

Source of the format: sierra-research/tau-bench, historical_trajectories.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import TraceRequest
from longturn.lab.trace.messages import Message, said, whole
from longturn.lab.trace.text import TEXT_NOTE, Texts, Tokenize
from longturn.lab.trace.transcript import Call, Transcript, finished


class Trajectory(msgspec.Struct):
    """One entry of the array."""

    task_id: int | str
    traj: Annotated[list[Message], Meta(min_length=1)]
    trial: int | str = 0


class TauBench(FileTrace):
    """A tau-bench file. Every assistant message is a request, its prompt all messages before it.

    The file is one JSON array, which is in memory while it is gone through.
    """

    def __init__(self, file: TraceFile, *, skip_bad: bool = False, tokenize: Tokenize | None = None) -> None:
        notes = [
            "Conversations follow each other in the order of the file, which tells no times: all requests have time 0.",
            *([] if tokenize else [TEXT_NOTE]),
            "Tool definitions are not in the file and not in the prompts.",
        ]
        super().__init__(file, unit=1, notes=notes, skip_bad=skip_bad)
        self._texts = Texts(tokenize)
        self._decode = msgspec.json.Decoder(Trajectory).decode

    def __iter__(self) -> Iterator[TraceRequest]:
        for number, trajectory in self.records(self._decode, self.file.entries(), kind="entry"):
            name = f"{trajectory.task_id}/{trajectory.trial}"
            yield from conversation(name, trajectory.traj, self._texts, f"entry {number}")


def conversation(
    session: str, messages: list[Message], texts: Texts, where: str, time: float = 0.0
) -> Iterator[TraceRequest]:
    """The requests of a whole conversation: one per assistant message."""
    calls: deque[Call] = deque()
    transcript = Transcript(session, calls, opening=texts.opening("assistant"), closing=texts.closing)
    for place, message in enumerate(messages, start=1):
        if message.role == "assistant" and len(transcript):
            transcript.answer(str(place), said(message, texts), label=f"{where}, message {place}")
            yield from finished(calls)
        else:
            transcript.add(whole(message, texts), None if len(transcript) else time)
    transcript.close()
    yield from finished(calls)
