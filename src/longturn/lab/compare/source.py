"""Where the requests of a comparison come from: a file, a share of its sessions, with or without what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import nextafter
from pathlib import Path

import xxhash

from longturn.lab.trace import Trace, TraceRequest, open_trace


@dataclass(frozen=True)
class Source:
    """A trace that several processes can open, each for itself.

    share: the share of its sessions that is taken, those whose names have the smallest hashes; apart: every session is
    alone, as if nothing were equal between two of them.
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
        """The same, but only as many sessions as are about so much work to replay, in requests; at least one.

        Long prompts and answers count for more, about as much longer as they take.
        """
        trace = self.open()
        found: dict[str, float] = {}
        for one in trace:
            takes = 1 + len(one.prompt) / 500 + one.output_tokens / trace.unit / 10
            found[one.session] = found.get(one.session, 0.0) + takes
        return self.with_sessions(found, work)

    def with_sessions(self, sizes: Mapping[str, float], most: float) -> Source:
        """The same with the first of its sessions, by their hashes, until their sizes come to `most`."""
        taken = 0.0
        for place, session in sorted((_place(session), session) for session in sizes):
            if taken >= most:
                # Just below this one's place, which rounding must not take in.
                return replace(self, share=nextafter(place / _PLACES, 0.0))
            taken += sizes[session]
        return self


_PLACES = 2**64


def _place(session: str) -> int:
    """Where a session stands among all, from 0 up to 2**64."""
    return xxhash.xxh64_intdigest(session.encode())


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
            notes.append(f"a sample of about {source.share:.1%} of the sessions")
        if source.apart:
            notes.append("sessions are taken as if they shared nothing")
        return notes

    def __iter__(self) -> Iterator[TraceRequest]:
        share, apart = self._source.share, self._source.apart
        for request in self._trace:
            if share >= 1 or _place(request.session) < share * _PLACES:
                yield replace(request, salt=f"{request.salt}/{request.session}") if apart else request
