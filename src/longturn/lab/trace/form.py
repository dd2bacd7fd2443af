"""The one form of a trace: requests whose prompts are sequences of block ids, kept as runs where that is shorter.

A block is `unit` tokens of content that is equal wherever its id is equal; with a unit of 1 the ids are token ids. A
prompt of 100,000 tokens that continues an earlier one is a handful of runs, never one object per block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


class Blocks:
    """A sequence of block ids, either plain or as runs of consecutive ids. Immutable."""

    __slots__ = ("_firsts", "_length", "_plain", "_stops")

    def __init__(self, *, plain: Ids | None = None, firsts: Ids | None = None, counts: Ids | None = None) -> None:
        self._plain = plain
        self._firsts, self._stops = firsts, None if counts is None else np.cumsum(counts)
        if plain is not None:
            self._length = len(plain)
        else:
            self._length = int(self._stops[-1]) if self._stops is not None and len(self._stops) else 0

    @classmethod
    def of(cls, ids: npt.ArrayLike) -> Blocks:
        """From ids [n], in the shorter of both encodings."""
        array = np.asarray(ids, dtype=np.int64)
        if len(array) < 4:
            return cls(plain=array)
        breaks = np.flatnonzero(np.diff(array) != 1) + 1
        if 2 * (len(breaks) + 1) > len(array):
            return cls(plain=array)
        starts = np.concatenate(([0], breaks))
        return cls(firsts=array[starts], counts=np.diff(np.concatenate((starts, [len(array)]))))

    @classmethod
    def runs(cls, firsts: npt.ArrayLike, counts: npt.ArrayLike) -> Blocks:
        """From runs: `counts[i]` consecutive ids from `firsts[i]` on."""
        return cls(firsts=np.asarray(firsts, dtype=np.int64), counts=np.asarray(counts, dtype=np.int64))

    @classmethod
    def join(cls, *parts: Blocks) -> Blocks:
        """One after the other: as runs where all parts are runs, plain otherwise."""
        parts = tuple(part for part in parts if len(part))
        if not parts or any(part._plain is not None for part in parts):
            return cls(plain=np.concatenate([NO_BLOCKS.ids(), *(part.ids() for part in parts)]))
        firsts = [part._firsts for part in parts if part._firsts is not None]
        counts = [np.diff(part._stops, prepend=0) for part in parts if part._stops is not None]
        return cls(firsts=np.concatenate(firsts), counts=np.concatenate(counts))

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same ids, however they are kept."""
        return isinstance(other, Blocks) and len(self) == len(other) == self.shared_with(other)

    def __hash__(self) -> int:
        return hash((len(self), *self.part(0, min(4, len(self))).ids().tolist()))

    def part(self, start: int, stop: int) -> Blocks:
        """The blocks from `start` up to but without `stop`, 0 <= start <= stop <= len, in the same encoding."""
        if self._plain is not None:
            return Blocks(plain=self._plain[start:stop])
        assert self._firsts is not None
        assert self._stops is not None
        if start >= stop:
            return NO_BLOCKS
        low = int(np.searchsorted(self._stops, start, side="right"))
        high = int(np.searchsorted(self._stops, stop, side="left")) + 1
        stops = np.minimum(self._stops[low:high], stop)
        starts = np.concatenate(([start], stops[:-1]))
        return Blocks(firsts=self._ids_at(starts), counts=stops - starts)

    def shared_with(self, other: Blocks) -> int:
        """How many leading blocks are equal. Compares runs where both are runs, block by block otherwise."""
        n = min(len(self), len(other))
        if self._stops is None or other._stops is None:
            differ = self.ids()[:n] != other.ids()[:n]
            return int(differ.argmax()) if differ.any() else n
        # Between two neighbouring beginnings of runs both sides count up by one: equal there means equal throughout.
        starts = np.union1d(np.concatenate(([0], self._stops)), other._stops)
        starts = starts[starts < n]
        differ = self._ids_at(starts) != other._ids_at(starts)
        return int(starts[differ.argmax()]) if differ.any() else n

    def _ids_at(self, places: Ids) -> Ids:
        """The ids at some places of a sequence that is kept as runs."""
        assert self._firsts is not None
        assert self._stops is not None
        runs = np.searchsorted(self._stops, places, side="right")
        return self._firsts[runs] + places - np.concatenate(([0], self._stops[:-1]))[runs]

    def ids(self) -> Ids:
        """All ids, int64 [n]. Do not write to it."""
        if self._plain is not None:
            return self._plain
        assert self._firsts is not None
        assert self._stops is not None
        starts = np.concatenate(([0], self._stops[:-1]))
        counts = self._stops - starts
        return np.repeat(self._firsts - starts, counts) + np.arange(self._length)


NO_BLOCKS = Blocks(plain=np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One call of a model.

    time: seconds from the start of the trace; prompt: its blocks, of which the last may be partly filled;
    prompt_tokens, output_tokens: lengths in tokens; output: blocks of the answer, where the trace tells or the next
    request of the session shows them, else None. They continue the prompt's whole blocks: the first is block
    `prompt_tokens // unit` of prompt and answer together, and they may be fewer than the answer fills where less is
    known. think: seconds between the end of the session's previous request and this one, None where the trace does not
    tell; label: where it stands in the file, for people.
    """

    id: str
    session: str
    time: float
    prompt: Blocks
    prompt_tokens: int
    output_tokens: int
    output: Blocks | None = None
    think: float | None = None
    salt: str = ""
    label: str = field(default="", compare=False)


class Trace(Protocol):
    """A trace that can be gone through as often as needed. Nothing of it needs to be in memory.

    name: what people call it; unit: tokens per block; notes: premises of the reading, one sentence each, printed with
    every result.
    """

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> int: ...

    @property
    def notes(self) -> list[str]: ...

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests in serial order: of the file, or by time where sessions are merged."""
