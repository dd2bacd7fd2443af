"""How the queries of one step read the pool, planned once for all layers.

KV is read where it lies, run by run. Prompts are cut into tiles at fixed positions, so that nothing depends on chunks,
on what was cached, or on where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longturn.cache import Run, Runs
from longturn.engine.runner.contract import Span
from longturn.engine.runner.kernels import AS_THEY_COME, Filling
from longturn.engine.runner.native import Layout

# A token is attended in two parts, all tiles of so many positions before its own, and its own; so that its
# result does not depend on how a prompt was cut into chunks or how much of it was cached.
TILE = 256
# So many tokens of requests that lie in several runs are gathered in each step, whole, so that their answers do not
# depend on where they lie either. Beyond that (many requests behind a shared prompt) runs are read where they are, and
# the parts are merged: faster, and different in the last bit.
GATHERED_TOKENS = 8192
# Below this length a run is gathered with others instead of being read in place by a call of its own.
SHORT_RUN = 192

KeysValues = tuple[Tensor, Tensor]


class Piece:
    """KV that several queries read whole: one run in place, or `slots` (int64 [n]) to gather."""

    def __init__(self, kv: Tensor, rows: list[int], run: Run | None = None, slots: Tensor | None = None) -> None:
        self.rows = rows
        self._kv = kv
        self._slots = slots
        self._in_place: list[KeysValues] = []
        if run is not None:
            part = kv[:, :, run.start : run.stop].transpose(2, 3).unsqueeze(2)
            # Views for all layers at once: making them layer by layer would cost more than the attention itself.
            self._in_place = list(zip(part[:, 0].unbind(0), part[:, 1].unbind(0), strict=True))

    def read(self, layer: int) -> KeysValues:
        """Keys and values, each [1, kv_heads, n, head_dim]; views of the pool where that can be."""
        if self._in_place:
            return self._in_place[layer]
        assert self._slots is not None
        keys, values = self._kv[layer].index_select(1, self._slots).transpose(1, 2).unsqueeze(1).unbind(0)
        return keys, values


class Chunk:
    """Tokens of a prompt: rows `row` to `row + n` of the step, at positions from `start` on.

    They are attended in tiles of TILE positions, cut at multiples of it from the beginning of the sequence: `tiles`
    holds (first row of the chunk, row after the last, KV of all tiles before). `own` is where the tiles' tokens lie,
    from the first tile's beginning to the end of the chunk.
    """

    def __init__(
        self, row: int, n: int, start: int, tiles: list[tuple[int, int, Piece | None]], own: Run | Tensor
    ) -> None:
        self.rows = slice(row, row + n)
        self.n = n
        self.start = start
        self.tiles = tiles
        self.n_tiles = len(tiles)
        self.skip = start % TILE
        self._own = own
        self._mask: Tensor | None = None

    def read(self, kv: Tensor) -> Tensor:
        """KV of the tiles' tokens in one layer's pool [2, slots, kv_heads, head_dim]; a view where that can be."""
        return kv.index_select(1, self._own) if isinstance(self._own, Tensor) else kv[:, self._own[0] : self._own[1]]

    def mask(self, group: int) -> Tensor:
        """For a chunk within one tile: what each row sees of it, float32 [1, 1, group * n, TILE]."""
        if self._mask is None:
            unseen = torch.full((self.n, TILE), -torch.inf).triu(self.skip + 1)
            self._mask = unseen.repeat(group, 1)[None, None]
        return self._mask


class Singles:
    """Single tokens that continue their sequences: row rows[i] of the step is the i-th of n.

    Like prompts they are attended in two parts: `slots` (int64 [n * TILE]) are their own tiles, filled up to whole ones
    and masked by `mask` (float32 [n, 1, 1, TILE]); `past` is what lies before, with numbers i for rows.
    in_one_piece: no token has several pieces or shares one; in_order: each has one, in the order of the tokens.
    """

    def __init__(self, rows: list[int], slots: Tensor, mask: Tensor, past: list[Piece]) -> None:
        self.rows = rows
        self.slots = slots
        self.mask = mask
        of_rows = [row for piece in past for row in piece.rows]
        self.in_one_piece = len(set(of_rows)) == len(of_rows) == len(past)
        self.past = sorted(past, key=lambda piece: piece.rows) if self.in_one_piece else past
        self.in_order = [piece.rows for piece in self.past] == [[i] for i in range(len(rows))]


class StepPlan:
    """How the queries of one step read the pool `kv` [layers, 2, slots, kv_heads, head_dim].

    in_place False: every span reads its KV gathered in one piece, wherever it lies (deterministic mode). filling: rows
    that the CPU's kernel needs beside others, so that results do not depend on their number.
    """

    def __init__(self, kv: Tensor, spans: Sequence[Span], *, in_place: bool, filling: Filling = AS_THEY_COME) -> None:
        self.in_place = in_place and kv.device.type == "cpu"
        self.filling = filling
        self.rope: tuple[Tensor, Tensor, Tensor] | None = None
        self.kv = kv
        self.spans = spans
        new = [_slots(span.runs.slice(span.start, span.start + len(span.tokens))) for span in spans]
        self.new_slots = self._on_device(np.concatenate(new))
        self._layouts: dict[int | None, tuple[list[Chunk], Singles | None, list[int]]] = {}
        self._whole: dict[int | None, list[tuple[slice, Piece]]] = {}

    @cached_property
    def native(self) -> Layout:
        """Where the spans lie, for the native kernels."""
        return Layout(self.spans)

    def within(self, window: int | None) -> bool:
        """Whether no token of the step looks further back than `window` tokens, and so sees all before it."""
        return window is None or all(_stop(span) <= window for span in self.spans)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put the step's KV, each [T, kv_heads, head_dim], into the pool (mutates it)."""
        pool = self.kv[layer]
        pool[0].index_copy_(0, self.new_slots, keys)
        pool[1].index_copy_(0, self.new_slots, values)

    def layout(self, window: int | None) -> tuple[list[Chunk], Singles | None, list[int]]:
        """Chunks, single tokens, and the numbers of spans that look back further than `window` tokens."""
        if window not in self._layouts:
            self._layouts[window] = self._plan(window)
        return self._layouts[window]

    def whole(self, window: int | None) -> list[tuple[slice, Piece]]:
        """Rows of each span, and all the KV that any of them sees in one piece."""
        if window not in self._whole:
            self._whole[window] = [
                (rows, Piece(self.kv, [], slots=self._gather(span.runs.slice(_first(span, window), _stop(span)))))
                for rows, span in self._rows()
            ]
        return self._whole[window]

    def _rows(self) -> Iterator[tuple[slice, Span]]:
        row = 0
        for span in self.spans:
            yield slice(row, row + len(span.tokens)), span
            row += len(span.tokens)

    def _plan(self, window: int | None) -> tuple[list[Chunk], Singles | None, list[int]]:
        chunks, singles, windowed = [], [], []
        for number, (rows, span) in enumerate(self._rows()):
            if window is not None and _stop(span) > window:
                windowed.append(number)
            elif span.prompt:
                chunks.append(self._chunk(span, rows.start))
            else:
                singles.append((rows.start, span))
        return chunks, self._singles(singles) if singles else None, windowed

    def _singles(self, singles: list[tuple[int, Span]]) -> Singles:
        slots = np.empty((len(singles), TILE), np.int64)
        mask = torch.zeros((len(singles), 1, 1, TILE))
        pasts = [span.runs.slice(0, span.start // TILE * TILE) for _, span in singles]
        scattered = sum(len(past) for past in pasts if len(past.runs) > 1)
        shared: dict[Run, list[int]] = {}
        gathered: list[Piece] = []
        for i, (_, span) in enumerate(singles):
            own = _slots(span.runs.slice(span.start // TILE * TILE, span.start + 1))
            # Filled up with what is surely finite, and masked.
            slots[i, : len(own)], slots[i, len(own) :] = own, own[0]
            mask[i, ..., len(own) :] = -torch.inf
            long, short = _by_length(pasts[i], SHORT_RUN if scattered > GATHERED_TOKENS else None)
            for run in long:
                shared.setdefault(run, []).append(i)
            if short:
                gathered.append(Piece(self.kv, [i], slots=self._gather(short)))
        past = [Piece(self.kv, rows, run=run) for run, rows in shared.items()] + gathered
        return Singles([row for row, _ in singles], self._on_device(slots.ravel()), mask, past)

    def _chunk(self, span: Span, row: int) -> Chunk:
        n, start = len(span.tokens), span.start
        first, stop = start // TILE * TILE, start + n
        last = (stop - 1) // TILE * TILE
        # One piece holds all that any tile looks back to; each reads as much of its beginning as lies before it.
        runs = span.runs.slice(0, last).runs
        past = None
        if len(runs) == 1:
            past = Piece(self.kv, [], run=runs[0])
        elif runs:
            past = Piece(self.kv, [], slots=self._gather(runs))
        tiles = [
            (max(at, start) - start, min(at + TILE, stop) - start, past if at else None)
            for at in range(first, stop, TILE)
        ]
        own = span.runs.slice(first, stop).runs
        return Chunk(row, n, start, tiles, own[0] if len(own) == 1 else self._gather(own))

    def _gather(self, runs: Runs | list[Run]) -> Tensor:
        return self._on_device(_slots(runs))

    def _on_device(self, slots: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(slots).to(self.kv.device)


def _first(span: Span, window: int | None) -> int:
    """The first position that any token of the span sees."""
    return 0 if window is None else max(0, span.start + 1 - window)


def _stop(span: Span) -> int:
    return span.start + len(span.tokens)


def _by_length(runs: Runs, least: int | None) -> tuple[list[Run], list[Run]]:
    """Runs to read in place, and runs to gather: those shorter than `least`, or all when it is None."""
    if len(runs.runs) == 1:
        return runs.runs, []
    long = [run for run in runs if least is not None and run.stop - run.start >= least]
    return long, [run for run in runs if run not in long]


def _slots(runs: Runs | list[Run]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(run.start, run.stop) for run in runs] or [np.empty(0, dtype=np.int64)])
