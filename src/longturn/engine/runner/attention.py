"""Attention over the pool: KV is read where it lies, run by run, and the parts are merged by log-sum-exp.

A step's queries are planned once (`StepPlan`) and every layer follows the plan. In decode the query heads of a group
are folded into the query length, and requests that share a run of slots (a system prompt) read it together. Short runs
are gathered first: a call per run would cost more than the copy. Merging partial attention by log-sum-exp follows
FlashAttention (Dao et al. 2022) and cascade inference (FlashInfer, Ye et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longturn.cache import Run, Runs
from longturn.engine.runner.contract import Span
from longturn.engine.runner.kernels import dense, partial

# Below this length a run is gathered with others instead of being read in place by a call of its own.
SHORT_RUN = 192


@dataclass(frozen=True, eq=False)
class Piece:
    """KV that several queries read whole: a run in place, or slots to gather (int64 [n])."""

    rows: tuple[int, ...]
    run: Run | None = None
    slots: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Chunk:
    """A span of several tokens: rows `row` to `row + n` of the step, at positions from `start` on."""

    row: int
    n: int
    start: int
    past: tuple[Piece, ...]
    slots: Tensor


@dataclass(eq=False)
class StepPlan:
    """How the queries of one step read the pool. `window` None is full attention; others are planned when asked."""

    kv: Tensor
    spans: Sequence[Span]
    in_place: bool
    new_slots: Tensor = field(init=False)
    _by_window: dict[int | None, tuple[list[Chunk], list[Piece]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = [_slots(span.runs.slice(span.start, span.start + len(span.tokens))) for span in self.spans]
        self.new_slots = torch.from_numpy(np.concatenate(parts)).to(self.kv.device)

    def layout(self, window: int | None) -> tuple[list[Chunk], list[Piece]]:
        """Chunks, and the pieces that single-token queries read, when only `window` tokens are visible."""
        if window not in self._by_window:
            self._by_window[window] = self._plan(window)
        return self._by_window[window]

    def _plan(self, window: int | None) -> tuple[list[Chunk], list[Piece]]:
        chunks: list[Chunk] = []
        shared: dict[Run, list[int]] = {}
        pieces: list[Piece] = []
        row = 0
        for span in self.spans:
            n, stop = len(span.tokens), span.start + len(span.tokens)
            first = 0 if window is None else max(0, span.start + 1 - window)
            if n > 1:
                past = self._pieces(span.runs.slice(first, span.start), (row,))
                seen = torch.from_numpy(_slots(span.runs.slice(first, stop))).to(self.kv.device)
                chunks.append(Chunk(row, n, span.start, tuple(past), seen))
            else:
                for piece in self._pieces(span.runs.slice(first, stop), (row,)):
                    if piece.run is not None:
                        shared.setdefault(piece.run, []).append(row)
                    else:
                        pieces.append(piece)
            row += n
        pieces.extend(Piece(tuple(rows), run=run) for run, rows in shared.items())
        return chunks, pieces

    def _pieces(self, runs: Runs, rows: tuple[int, ...]) -> list[Piece]:
        whole = [run for run in runs if self.in_place and (run.stop - run.start >= SHORT_RUN or len(runs.runs) == 1)]
        short = [run for run in runs if run not in whole]
        out = [Piece(rows, run=run) for run in whole]
        if short:
            out.append(Piece(rows, slots=torch.from_numpy(_slots(short)).to(self.kv.device)))
        return out

    def read(self, layer: int, piece: Piece) -> tuple[Tensor, Tensor]:
        """Keys and values of a piece, each [1, kv_heads, n, head_dim]; views of the pool where that can be."""
        kv = self.kv[layer]
        if piece.run is not None:
            part = kv[:, piece.run.start : piece.run.stop]
        else:
            assert piece.slots is not None
            part = kv.index_select(1, piece.slots)
        keys, values = part.transpose(1, 2).unsqueeze(1).unbind(0)
        return keys, values


def attend(
    module: torch.nn.Module,
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

    Writes the new KV into the pool (mutates it), returns [1, T, heads, d].
    """
    plan = longturn_step
    assert plan is not None
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    n_heads, n_tokens, dim = query.shape[1:]
    kv_heads = key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    pool = plan.kv[layer]
    pool[0].index_copy_(0, plan.new_slots, key[0].transpose(0, 1))
    pool[1].index_copy_(0, plan.new_slots, value[0].transpose(0, 1))
    chunks, pieces = plan.layout(sliding_window)
    out = torch.empty((n_tokens, n_heads, dim), dtype=query.dtype, device=query.device)
    folded = query.view(kv_heads, n_heads // kv_heads, n_tokens, dim)
    if softcap is not None or not plan.in_place or query.device.type != "cpu":
        _attend_whole(plan, layer, query, out, scale, sliding_window, softcap)
        return out[None], None
    for chunk in chunks:
        rows = slice(chunk.row, chunk.row + chunk.n)
        if sliding_window is not None and chunk.start + chunk.n > sliding_window:
            out[rows] = _attend_dense(plan, layer, query[:, :, rows], chunk, scale, sliding_window, None)
            continue
        group = n_heads // kv_heads
        own_keys = key[:, :, rows].repeat_interleave(group, 1)
        own_values = value[:, :, rows].repeat_interleave(group, 1)
        parts = [partial(query[:, :, rows], own_keys, own_values, scale, causal=True)]
        if chunk.past:
            stacked = folded[:, :, rows].reshape(1, kv_heads, group * chunk.n, dim)
            for piece in chunk.past:
                result, weight = partial(stacked, *plan.read(layer, piece), scale)
                parts.append((result.view(1, n_heads, chunk.n, dim), weight.reshape(1, n_heads, chunk.n)))
        out[rows] = _merge(parts)[0].transpose(0, 1)
    if pieces:
        _attend_single(plan, layer, folded, pieces, out, scale)
    return out[None], None


def _attend_single(plan: StepPlan, layer: int, folded: Tensor, pieces: list[Piece], out: Tensor, scale: float) -> None:
    """Rows of one token each: read every piece once for all rows that share it, then merge per row."""
    kv_heads, group, _, dim = folded.shape
    results: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for piece in pieces:
        keys, values = plan.read(layer, piece)
        n = len(piece.rows)
        if n == 1:
            stacked = folded[:, :, piece.rows[0]].unsqueeze(0)
        else:
            stacked = folded[:, :, list(piece.rows)].reshape(1, kv_heads, group * n, dim)
        result, weight = partial(stacked, keys, values, scale)
        for i, row in enumerate(piece.rows):
            results.setdefault(row, []).append(
                (result.view(1, kv_heads, group, n, dim)[:, :, :, i], weight.reshape(1, kv_heads, group, n)[:, :, :, i])
            )
    for row, parts in results.items():
        out[row] = _merge(parts).view(kv_heads * group, dim)


def _attend_whole(
    plan: StepPlan,
    layer: int,
    query: Tensor,
    out: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> None:
    """Each span by one call over all of its KV, gathered: for deterministic mode, accelerators and soft caps."""
    row = 0
    for span in plan.spans:
        n, stop = len(span.tokens), span.start + len(span.tokens)
        first = 0 if window is None else max(0, span.start + 1 - window)
        slots = torch.from_numpy(_slots(span.runs.slice(first, stop))).to(plan.kv.device)
        chunk = Chunk(row, n, span.start, (), slots)
        out[row : row + n] = _attend_dense(plan, layer, query[:, :, row : row + n], chunk, scale, window, softcap)
        row += n


def _attend_dense(
    plan: StepPlan,
    layer: int,
    query: Tensor,
    chunk: Chunk,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    keys, values = plan.read(layer, Piece((), slots=chunk.slots))
    return dense(query, keys, values, scale, window=window, softcap=softcap)[0].transpose(0, 1)


def _merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over the union of several sets of keys from (result [..., d], log-sum-exp [...]) over each."""
    if len(parts) == 1:
        return parts[0][0]
    weights = torch.softmax(torch.stack([weight for _, weight in parts]), dim=0)
    total = torch.stack([result for result, _ in parts]).float().mul_(weights.unsqueeze(-1)).sum(0)
    return total.to(parts[0][0].dtype)


def _slots(runs: Runs | list[Run]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.concatenate([np.arange(run.start, run.stop) for run in runs] or [np.empty(0, dtype=np.int64)])
