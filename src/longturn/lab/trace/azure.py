"""Arrivals and lengths as Azure publishes them, without content.

Source of the format: Azure/AzurePublicDataset, AzureLLMInferenceTrace (Patel et al., "Splitwise", ISCA 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import Blocks, TraceRequest

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


class Arrival(NamedTuple):
    """One line: when it came and how long prompt and answer are, in tokens."""

    at: datetime
    n_prompt: int
    n_output: int


def arrival(line: bytes) -> Arrival:
    """Reads a line. Raises ValueError."""
    fields = line.decode().strip().split(",")
    if len(fields) != 3:
        raise ValueError(f"there are {len(fields)} fields instead of the 3 of {HEADER.decode()}")
    read = Arrival(datetime.fromisoformat(fields[0]), int(fields[1]), int(fields[2]))
    if read.n_prompt < 1 or read.n_output < 0:
        raise ValueError(f"lengths of {read.n_prompt} and {read.n_output} tokens are not possible")
    return read


class Azure(FileTrace):
    """An Azure CSV file: every request is a session of its own, with a prompt that no other has."""

    def __init__(self, file: TraceFile, *, skip_bad: bool = False) -> None:
        notes = ["The file tells arrivals and lengths only: no request shares anything with another."]
        super().__init__(file, unit=1, notes=notes, skip_bad=skip_bad)

    def __iter__(self) -> Iterator[TraceRequest]:
        start: datetime | None = None
        n_ids = 0
        lines = islice(self.file.lines(), 1, None)  # without the header
        for place, (number, read) in enumerate(self.records(arrival, lines)):
            start = start or read.at
            yield TraceRequest(
                id=str(place),
                session=str(place),
                time=max(0.0, (read.at - start).total_seconds()),
                prompt=Blocks.runs([n_ids], [read.n_prompt]),
                prompt_tokens=read.n_prompt,
                output_tokens=read.n_output,
                label=f"line {number}",
            )
            n_ids += read.n_prompt
