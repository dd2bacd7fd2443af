"""Where the requests of a comparison come from: a file, a share of its sessions, with or without what they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from longturn.lab.trace import Trace, TraceRequest, open_trace


@dataclass(frozen=True)
class Source:
    """A trace that several processes can open, each for itself.

    share: the share of its sessions that is taken, chosen by a hash of their names; apart: every session is alone, as
    if nothing were equal between two of them.
    """

    path: Path
    format: str | None = None
    skip_bad: bool = False
    share: float = 1.0
    apart: bool = False

    def open(self) -> Trace:
        """The trace. Raises TraceError or ConfigError."""
        return Part(open_trace(self.path, format=self.format, skip_bad=self.skip_bad), self)

    def at_most(self, work: float) -> Source:
        """The same, but only as large a share of the sessions as is about so much work to replay, in requests.

        Long prompts and answers count for more, about as much longer as they take.
        """
        trace = self.open()
        found = sum(1 + len(one.prompt) / 500 + one.output_tokens / trace.unit / 10 for one in trace)
        return replace(self, share=self.share * min(work / max(found, 1.0), 1.0))


class Part:
    """What a source takes of a trace, as a trace."""

    def __init__(self, trace: Trace, source: Source) -> None:
        self.name, self.unit = trace.name, trace.unit
        self._trace, self._source = trace, source

    @property
    def notes(self) -> list[str]:
        """Those of the whole, and what was left out or changed."""
        source, notes = self._source, list(self._trace.notes)
        if source.share < 1:
            notes.append(f"a sample of {source.share:.1%} of the sessions")
        if source.apart:
            notes.append("sessions are taken as if they shared nothing")
        return notes

    def __iter__(self) -> Iterator[TraceRequest]:
        share, apart = self._source.share, self._source.apart
        for request in self._trace:
            if share >= 1 or xxhash.xxh64_intdigest(request.session.encode()) < share * 2**64:
                yield replace(request, salt=f"{request.salt}/{request.session}") if apart else request
