"""Traces as Mooncake publishes them: arrival, lengths, and one chained hash id per 512 tokens.

Source of the format: the FAST25 release of kvcache-ai/Mooncake (Qin et al., "Mooncake: Trading More Storage for Less
Computation", FAST 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.following import ANSWERS_SHOWN, FollowUps, with_answer
from longturn.lab.trace.form import Blocks, TraceRequest

UNIT = 512


class Record(msgspec.Struct):
    """One line. `timestamp` in milliseconds, lengths in tokens."""

    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1)]
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: list[Annotated[int, Meta(ge=0, le=2**63 - 1)]]

    def __post_init__(self) -> None:
        needed = -(-self.input_length // UNIT)
        if len(self.hash_ids) != needed:
            raise ValueError(
                f"an input_length of {self.input_length} takes {needed} hash_ids of {UNIT} tokens, "
                f"there are {len(self.hash_ids)}"
            )


class Mooncake(FileTrace):
    """A Mooncake file. Order is that of the file."""

    def __init__(self, file: TraceFile, *, skip_bad: bool = False) -> None:
        notes = [
            "The file names no sessions: a request that begins with all whole blocks of an earlier prompt, at least "
            "two, is taken for the next turn of its session.",
            ANSWERS_SHOWN,
        ]
        super().__init__(file, unit=UNIT, notes=notes, skip_bad=skip_bad)
        self._decode = msgspec.json.Decoder(Record).decode

    def __iter__(self) -> Iterator[TraceRequest]:
        follow_ups = FollowUps()
        for place, (number, record) in enumerate(self.records(self._decode)):
            before = follow_ups.before(record.hash_ids, least=2)
            request = TraceRequest(
                id=str(place),
                session=before.session if before else str(place),
                time=record.timestamp / 1000,
                prompt=Blocks.of(record.hash_ids),
                prompt_tokens=record.input_length,
                output_tokens=record.output_length,
                label=f"line {number}",
            )
            if before:
                follow_ups.change(before, partial(with_answer, following=request, unit=UNIT))
            n_whole = record.input_length // UNIT
            yield from follow_ups.hold(request, record.hash_ids[n_whole - 1] if n_whole >= 2 else None)
        yield from follow_ups.rest()
