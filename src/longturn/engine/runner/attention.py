"""Attention over the pool: KV is read where it lies, run by run, and the parts are merged by log-sum-exp.

A step's queries are planned once (`StepPlan`) and every layer follows the plan. Prompts are attended in tiles that do
not depend on chunks, so that a token's result is the same to the bit with a cached prefix and without. In decode the
query heads of a group are folded into the query length, and requests that share a run of slots (a system prompt) read
it together. Short runs are gathered first: a call per run would cost more than the copy. Merging partial attention by
log-sum-exp follows FlashAttention (Dao et al. 2022) and cascade inference (FlashInfer, Ye et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from longturn.cache import Run, Runs
from longturn.engine.runner.contract import Span
from longturn.engine.runner.kernels import dense, partial

# A prompt's token is attended in two parts, all tiles of so many positions before its own, and its own; so that its
# result does not depend on how the prompt was cut into chunks or how much of it was cached.
TILE = 256
# With fewer query rows than this (heads of a group times tokens) torch's kernel sums in another order.
LEAST_ROWS = 192
# So many tokens of requests that lie in several runs are gathered in each step, whole, so that their answers do not
# depend on where they lie either. Beyond that (many requests behind a shared prompt) runs are read where they are, and
# the parts are merged: faster, and different in the last bit.
GATHERED_TOKENS = 8192
# Below this length a run is gathered with others instead of being read in place by a call of its own.
SHORT_RUN = 192

KeysValues = tuple[Tensor, Tensor]


class Piece:
    """KV that the queries of `rows` read whole: one run in place, or `slots` (int64 [n]) to gather."""

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

    def read(self, kv: Tensor) -> Tensor:
        """KV of the tiles' tokens in one layer's pool [2, slots, kv_heads, head_dim]; a view where that can be."""
        return kv.index_select(1, self._own) if isinstance(self._own, Tensor) else kv[:, self._own[0] : self._own[1]]


class StepPlan:
    """How the queries of one step read the pool `kv` [layers, 2, slots, kv_heads, head_dim].

    in_place False: every span reads its KV gathered in one piece, wherever it lies (deterministic mode).
    """

    def __init__(self, kv: Tensor, spans: Sequence[Span], *, in_place: bool) -> None:
        self.in_place = in_place and kv.device.type == "cpu"
        self.rope: tuple[Tensor, Tensor, Tensor] | None = None
        self.kv = kv
        self._spans = spans
        new = [_slots(span.runs.slice(span.start, span.start + len(span.tokens))) for span in spans]
        self._new_slots = self._on_device(np.concatenate(new))
        self._layouts: dict[int | None, tuple[list[Chunk], list[Piece]]] = {}
        self._whole: dict[int | None, list[tuple[slice, Piece]]] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put the step's KV, each [T, kv_heads, head_dim], into the pool (mutates it)."""
        pool = self.kv[layer]
        pool[0].index_copy_(0, self._new_slots, keys)
        pool[1].index_copy_(0, self._new_slots, values)

    def layout(self, window: int | None) -> tuple[list[Chunk], list[Piece]]:
        """The chunks, and the pieces that single-token queries read, when `window` tokens are visible."""
        if window not in self._layouts:
            self._layouts[window] = self._plan(window)
        return self._layouts[window]

    def whole(self, window: int | None) -> list[tuple[slice, Piece]]:
        """Rows of each span and all the KV that any of them sees, in one piece."""
        if window not in self._whole:
            spans, row = [], 0
            for span in self._spans:
                n = len(span.tokens)
                seen = span.runs.slice(_first(span, window), span.start + n)
                spans.append((slice(row, row + n), Piece(self.kv, [], slots=self._on_device(_slots(seen)))))
                row += n
            self._whole[window] = spans
        return self._whole[window]

    def _plan(self, window: int | None) -> tuple[list[Chunk], list[Piece]]:
        chunks: list[Chunk] = []
        shared: dict[Run, list[int]] = {}
        gathered: list[Piece] = []
        seen = [span.runs.slice(_first(span, window), span.start + 1) for span in self._spans]
        scattered = sum(
            len(runs) for span, runs in zip(self._spans, seen, strict=True) if not span.prompt and len(runs.runs) > 1
        )
        row = 0
        for span, runs in zip(self._spans, seen, strict=True):
            if span.prompt:
                chunks.append(self._chunk(span, row))
            else:
                long, short = _by_length(runs, SHORT_RUN if scattered > GATHERED_TOKENS else None)
                for run in long:
                    shared.setdefault(run, []).append(row)
                if short:
                    gathered.append(Piece(self.kv, [row], slots=self._on_device(_slots(short))))
            row += len(span.tokens)
        return chunks, [Piece(self.kv, rows, run=run) for run, rows in shared.items()] + gathered

    def _chunk(self, span: Span, row: int) -> Chunk:
        n, start = len(span.tokens), span.start
        first, stop = start // TILE * TILE, start + n
        last = (stop - 1) // TILE * TILE
        # One piece holds all that any tile looks back to; each reads as much of its beginning as lies before it.
        runs = span.runs.slice(0, last).runs
        slots = None if len(runs) == 1 else self._on_device(_slots(runs))
        past = Piece(self.kv, [row], run=runs[0] if len(runs) == 1 else None, slots=slots) if last else None
        tiles = [
            (max(at, start) - start, min(at + TILE, stop) - start, past if at else None)
            for at in range(first, stop, TILE)
        ]
        own = span.runs.slice(first, stop).runs
        return Chunk(row, n, start, tiles, own[0] if len(own) == 1 else self._on_device(_slots(own)))

    def _on_device(self, slots: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(slots).to(self.kv.device)


def attention(
    plan: StepPlan,
    layer: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Write the new KV and attend: query [T, heads, d], keys and values [T, kv_heads, d] to [T, heads, d]."""
    plan.write(layer, keys, values)
    if softcap is not None or not plan.in_place:
        return _attend_whole(plan, layer, query, scale, window, softcap)
    chunks, pieces = plan.layout(window)
    if not chunks and len(pieces) == len(query) and all(len(piece.rows) == 1 for piece in pieces):
        return _attend_decode(pieces, layer, query, keys.shape[1], scale)
    out = torch.empty_like(query)
    for chunk in chunks:
        if window is not None and chunk.start + chunk.n > window:
            rows, piece = next(whole for whole in plan.whole(window) if whole[0] == chunk.rows)
            out[rows] = _dense(piece, layer, query[rows], scale, window, None)
        else:
            out[chunk.rows] = _attend_chunk(plan, chunk, layer, query, keys.shape[1], scale)
    if pieces:
        _attend_single(pieces, layer, query, keys.shape[1], out, scale)
    return out


def _attend_decode(pieces: list[Piece], layer: int, query: Tensor, kv_heads: int, scale: float) -> Tensor:
    """The common case of decode, each row alone with one run: no merging, fewest operations."""
    n, heads, dim = query.shape
    rows = torch.split(query.view(n, kv_heads, heads // kv_heads, dim), 1)
    results: list[Tensor] = [query] * n
    for piece in pieces:
        row = piece.rows[0]
        results[row] = partial(rows[row], *piece.read(layer), scale)[0]
    return (torch.cat(results) if n > 1 else results[0]).reshape(n, heads, dim)


def _attend_chunk(plan: StepPlan, chunk: Chunk, layer: int, query: Tensor, kv_heads: int, scale: float) -> Tensor:
    """A chunk of a prompt, tile by tile: each tile causally on its own, and what lies before it whole. [n, heads, d]"""
    own, n = query[chunk.rows], chunk.n
    heads, dim = own.shape[1:]
    group, end = heads // kv_heads, chunk.skip + n
    kv, tiled = chunk.read(plan.kv[layer]), own
    if n < chunk.n_tiles * TILE:
        # Whole tiles, filled up with zeros at both ends.
        kv = nn.functional.pad(kv, (0, 0, 0, 0, 0, chunk.n_tiles * TILE - end))
        tiled = nn.functional.pad(own, (0, 0, 0, 0, chunk.skip, chunk.n_tiles * TILE - end))
    keys, values = kv.view(2, -1, TILE, kv_heads, dim).transpose(2, 3).unbind(0)
    tiled = tiled.view(-1, TILE, kv_heads, group, dim).transpose(1, 2)
    result = own.new_empty((chunk.n_tiles, kv_heads, TILE, group, dim))
    weight = torch.empty((chunk.n_tiles, kv_heads, TILE, group))
    for i in range(group):
        result[:, :, :, i], weight[..., i] = partial(tiled[:, :, :, i], keys, values, scale, causal=True)
    # From tiles [t, kv_heads, TILE, group, d] back to the chunk's rows [n, heads, d].
    result = result.transpose(1, 2).reshape(-1, heads, dim)[chunk.skip : end]
    weight = weight.transpose(1, 2).reshape(-1, heads)[chunk.skip : end]
    looking_back = [tile for tile in chunk.tiles if tile[2] is not None]
    if not looking_back:
        return result
    first, least = looking_back[0][0], -(-LEAST_ROWS // group)
    before, before_weight = torch.empty_like(result[first:]), torch.empty_like(weight[first:])
    assert looking_back[0][2] is not None
    past_keys, past_values = looking_back[0][2].read(layer)
    for start, stop, _ in looking_back:
        length, m = (chunk.start + start) // TILE * TILE, max(stop - start, least)
        rows = (
            own[start:stop]
            if m == stop - start
            else nn.functional.pad(own[start:stop], (0, 0, 0, 0, 0, m + start - stop))
        )
        folded = rows.view(m, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * m, dim)
        found, found_weight = partial(folded, past_keys[:, :, :length], past_values[:, :, :length], scale)
        where = slice(start - first, stop - first)
        before[where] = found.reshape(heads, m, dim)[:, : stop - start].transpose(0, 1)
        before_weight[where] = found_weight.reshape(heads, m)[:, : stop - start].transpose(0, 1)
    share = torch.sigmoid(before_weight - weight[first:]).unsqueeze(-1).to(result.dtype)
    result[first:].lerp_(before, share)
    return result


def _attend_single(pieces: list[Piece], layer: int, query: Tensor, kv_heads: int, out: Tensor, scale: float) -> None:
    """Rows of one token each: read every piece once for all rows that share it, then merge per row into `out`."""
    heads, dim = query.shape[1:]
    group = heads // kv_heads
    parts: dict[int, list[KeysValues]] = {}
    for piece in pieces:
        n = len(piece.rows)
        rows = query[piece.rows].view(n, kv_heads, group, dim).transpose(0, 1).reshape(1, kv_heads, n * group, dim)
        result, weight = partial(rows, *piece.read(layer), scale)
        for i, row in enumerate(piece.rows):
            mine = slice(i * group, (i + 1) * group)
            parts.setdefault(row, []).append((result[:, :, mine], weight[:, :, mine]))
    for row, found in parts.items():
        out[row] = _merge(found).reshape(heads, dim)


def _attend_whole(
    plan: StepPlan, layer: int, query: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Each span by one call over all of its KV, gathered: for deterministic mode, accelerators and soft caps."""
    out = torch.empty_like(query)
    for rows, piece in plan.whole(window):
        out[rows] = _dense(piece, layer, query[rows], scale, window, softcap)
    return out


def _dense(piece: Piece, layer: int, query: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    keys, values = piece.read(layer)
    return dense(query.transpose(0, 1)[None], keys, values, scale, window=window, softcap=softcap)[0].transpose(0, 1)


def _merge(parts: list[KeysValues]) -> Tensor:
    """Attention over the union of several sets of keys from (result [..., d], log-sum-exp [...]) over each."""
    if len(parts) == 1:
        return parts[0][0]
    weights = torch.softmax(torch.stack([weight for _, weight in parts]), dim=0)
    total = torch.stack([result for result, _ in parts]).float().mul_(weights.unsqueeze(-1)).sum(0)
    return total.to(parts[0][0].dtype)


def _first(span: Span, window: int | None) -> int:
    """The first position that any token of the span sees."""
    return 0 if window is None else max(0, span.start + 1 - window)


def _by_length(runs: Runs, least: int | None) -> tuple[list[Run], list[Run]]:
    """Runs to read in place, and runs to gather: those shorter than `least`, or all when it is None."""
    if len(runs.runs) == 1:
        return runs.runs, []
    long = [run for run in runs if least is not None and run.stop - run.start >= least]
    return long, [run for run in runs if run not in long]


def _slots(runs: Runs | list[Run]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(run.start, run.stop) for run in runs] or [np.empty(0, dtype=np.int64)])


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    longturn_step: StepPlan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that `transformers` calls: query [1, heads, T, d], key and value [1, kv_heads, T, d].

    Returns [1, T, heads, d]. The mask is always None: the plan knows what each token sees.
    """
    assert longturn_step is not None
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    return attention(longturn_step, layer, q, k, v, scale, sliding_window, softcap)[None], None
