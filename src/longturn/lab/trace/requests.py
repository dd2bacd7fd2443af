"""The `requests` format: one JSON object a line with token ids. What Longturn itself writes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from longturn.errors import ConfigError
from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import Blocks, Trace, TraceRequest

Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0)]


class Record(msgspec.Struct, omit_defaults=True):
    """One line: `t` in seconds, `tokens` of the prompt, `output` as generated; `think`, `salt` as in a TraceRequest."""

    id: int | str
    session: int | str
    t: Seconds
    tokens: Annotated[list[Token], Meta(min_length=1)]
    output: list[Token]
    think: Seconds | None = None
    salt: str = ""


class Requests(FileTrace):
    """A `requests` file. Order is that of the file."""

    def __init__(self, file: TraceFile, *, skip_bad: bool = False) -> None:
        super().__init__(file, unit=1, notes=[], skip_bad=skip_bad)
        self._decode = msgspec.json.Decoder(Record).decode

    def __iter__(self) -> Iterator[TraceRequest]:
        for number, record in self.records(self._decode):
            yield TraceRequest(
                id=str(record.id),
                session=str(record.session),
                time=record.t,
                prompt=Blocks.of(record.tokens),
                prompt_tokens=len(record.tokens),
                output_tokens=len(record.output),
                output=Blocks.of(record.output),
                think=record.think,
                salt=record.salt,
                label=f"line {number}",
            )


def write_requests(trace: Trace, path: Path) -> int:
    """Write a trace of token ids as a `requests` file, gzip if it ends in .gz; returns the number of requests.

    An answer whose tokens are not known is written as tokens that occur nowhere else. Raises ConfigError for a trace
    in blocks of several tokens, or a file that cannot be written.
    """
    if trace.unit != 1:
        raise ConfigError(f"{trace.name} holds blocks of {trace.unit} tokens: only traces of token ids can be written.")
    encode, n_requests = msgspec.json.Encoder().encode, 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "wb") as file:
            for record in _records(trace):
                file.write(encode(record) + b"\n")
                n_requests += 1
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: give a file in a folder that is there ({error.strerror})"
        ) from None
    return n_requests


def _records(trace: Trace) -> Iterator[Record]:
    unknown = 2**31 - 1
    for request in trace:
        known = request.output.ids() if request.output is not None else np.empty(0, np.int64)
        missing = request.output_tokens - len(known)
        output = known.tolist() + list(range(unknown - missing + 1, unknown + 1))
        unknown -= missing
        yield Record(
            id=request.id,
            session=request.session,
            t=request.time,
            tokens=request.prompt.ids().tolist(),
            output=output,
            think=request.think,
            salt=request.salt,
        )
