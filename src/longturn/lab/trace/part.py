"""A part of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from longturn.lab.trace.form import Trace, TraceRequest


class First:
    """The first `n` requests of a trace, as a trace."""

    def __init__(self, trace: Trace, n: int) -> None:
        self.name, self.unit = trace.name, trace.unit
        self._trace, self._n = trace, n

    @property
    def notes(self) -> list[str]:
        """Those of the whole, and what was left out."""
        return [*self._trace.notes, f"only the first {self._n:,} requests"]

    def __iter__(self) -> Iterator[TraceRequest]:
        return islice(iter(self._trace), self._n)
