"""Attention over the pool: KV is read where it lies, and the parts are merged by log-sum-exp.

Every token is attended in two parts, all tiles before its own and its own tile, so that its result is the same to the
bit with a cached prefix and without, in a prompt and in an answer. In decode the query heads of a group are folded into
the query length, and where many requests share a run of slots (a system prompt) they read it together. Merging partial
attention by log-sum-exp follows FlashAttention (Dao et al. 2022) and cascade inference (FlashInfer, Ye et al. 2024).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longturn.engine.runner.kernels import dense, filled, partial
from longturn.engine.runner.plan import TILE, Chunk, KeysValues, Piece, Singles, StepPlan


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
        return _attend_whole(plan, layer, query, None, scale, window, softcap)
    chunks, singles, windowed = plan.layout(window)
    kv_heads = keys.shape[1]
    if singles is not None and len(singles.rows) == len(query):
        return _attend_singles(plan, singles, layer, query, kv_heads, scale)
    out = _attend_whole(plan, layer, query, windowed, scale, window, None)
    for chunk in chunks:
        out[chunk.rows] = _attend_chunk(plan, chunk, layer, query, kv_heads, scale)
    if singles is not None:
        out[singles.rows] = _attend_singles(plan, singles, layer, query[singles.rows], kv_heads, scale)
    return out


def _attend_chunk(plan: StepPlan, chunk: Chunk, layer: int, query: Tensor, kv_heads: int, scale: float) -> Tensor:
    """A chunk of a prompt, tile by tile: each tile causally on its own, and what lies before it whole. [n, heads, d]"""
    own = query[chunk.rows]
    result, weight = _attend_own(plan, chunk, layer, own, kv_heads, scale)
    looking_back = [tile for tile in chunk.tiles if tile[2] is not None]
    if not looking_back:
        return result
    first = looking_back[0][0]
    before, before_weight = torch.empty_like(own[first:]), torch.empty(own[first:].shape[:2])
    assert looking_back[0][2] is not None
    keys, values = looking_back[0][2].read(layer)
    for start, stop, _ in looking_back:
        length, where = (chunk.start + start) // TILE * TILE, slice(start - first, stop - first)
        rows = _folded(own[start:stop], kv_heads)
        found, found_weight = partial(rows, keys[:, :, :length], values[:, :, :length], scale, filling=plan.filling)
        before[where], before_weight[where] = _unfolded(found, stop - start), _unfolded(found_weight, stop - start)
    share = torch.sigmoid(before_weight - weight[first:]).unsqueeze(-1).to(result.dtype)
    result[first:].lerp_(before, share)
    return result


def _attend_own(plan: StepPlan, chunk: Chunk, layer: int, own: Tensor, kv_heads: int, scale: float) -> KeysValues:
    """The tiles of a chunk, each causally on its own: results [n, heads, d] and their log-sum-exp [n, heads]."""
    n, heads, dim = own.shape
    group, end = heads // kv_heads, chunk.skip + n
    # Whole tiles, filled up with zeros.
    kv = _filled(chunk.read(plan.kv[layer]), 0, chunk.n_tiles * TILE - end)
    keys, values = kv.view(2, -1, TILE, kv_heads, dim).transpose(2, 3).unbind(0)
    if chunk.n_tiles == 1:
        rows, mask = _folded(own, kv_heads), chunk.mask(group)
        result, weight = partial(rows, keys, values, scale, mask=mask, filling=plan.filling)
        return _unfolded(result, n), _unfolded(weight, n)
    tiled = _filled(own, chunk.skip, chunk.n_tiles * TILE - end)
    tiled = tiled.view(-1, TILE, kv_heads, group, dim).transpose(1, 2)
    result = own.new_empty((chunk.n_tiles, kv_heads, TILE, group, dim))
    weight = torch.empty((chunk.n_tiles, kv_heads, TILE, group))
    for i in range(group):
        result[:, :, :, i], weight[..., i] = partial(tiled[:, :, :, i], keys, values, scale, causal=True)
    # From tiles [t, kv_heads, TILE, group, d] back to the chunk's rows [n, heads, d].
    result = result.transpose(1, 2).reshape(-1, heads, dim)[chunk.skip : end]
    return result, weight.transpose(1, 2).reshape(-1, heads)[chunk.skip : end]


def _filled(tokens: Tensor, before: int, after: int) -> Tensor:
    """[..., n, heads, d] with zeros for so many tokens at both ends; whole tiles are not copied."""
    return nn.functional.pad(tokens, (0, 0, 0, 0, before, after)) if before or after else tokens


def _folded(query: Tensor, kv_heads: int) -> Tensor:
    """Query [n, heads, d] as [1, kv_heads, group * n, d]."""
    n, heads, dim = query.shape
    return query.view(n, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, dim)


def _unfolded(result: Tensor, n: int) -> Tensor:
    """[1, kv_heads, group * n, ...] as [n, heads, ...]."""
    return result.reshape(-1, n, *result.shape[3:]).transpose(0, 1)


def _attend_singles(plan: StepPlan, singles: Singles, layer: int, query: Tensor, kv_heads: int, scale: float) -> Tensor:
    """Single tokens, query [n, heads, d] to the same: all own tiles at once, and what lies before piece by piece."""
    n, heads, dim = query.shape
    group = heads // kv_heads
    folded = filled(query.view(n, kv_heads, group, dim), plan.filling)
    own = plan.kv[layer].index_select(1, singles.slots).view(2, n, TILE, kv_heads, dim).transpose(2, 3)
    mask = singles.mask.expand(-1, -1, folded.shape[2], -1)
    result, weight = partial(folded, own[0], own[1], scale, mask=mask)
    if singles.past:
        before, before_weight = _attend_past(plan, singles, layer, folded, group, scale)
        share = torch.sigmoid(before_weight - weight).unsqueeze(-1).to(result.dtype)
        result = torch.lerp(result, before, share)
    return result[:, :, :group].reshape(n, heads, dim)


def _attend_past(plan: StepPlan, singles: Singles, layer: int, folded: Tensor, group: int, scale: float) -> KeysValues:
    """What lies before the own tiles of folded [n, kv_heads, rows, d], of whose rows the first `group` count.

    Results and their log-sum-exp, of the same shape.
    """
    _, kv_heads, _, dim = folded.shape
    if singles.in_order:
        one_each = [partial(folded[i : i + 1], *piece.read(layer), scale) for i, piece in enumerate(singles.past)]
        return torch.cat([result for result, _ in one_each]), torch.cat([weight for _, weight in one_each])
    before = torch.zeros_like(folded)
    before_weight = torch.full(folded.shape[:3], -torch.inf)
    if singles.in_one_piece:
        for piece in singles.past:
            rows = slice(piece.rows[0], piece.rows[0] + 1)
            before[rows], before_weight[rows] = partial(folded[rows], *piece.read(layer), scale)
        return before, before_weight
    parts: dict[int, list[KeysValues]] = {}
    for piece in singles.past:
        m = len(piece.rows)
        rows_of_piece = folded[piece.rows, :, :group].transpose(0, 1).reshape(1, kv_heads, m * group, dim)
        found, weight = partial(rows_of_piece, *piece.read(layer), scale, filling=plan.filling)
        for i, row in enumerate(piece.rows):
            mine = slice(i * group, (i + 1) * group)
            parts.setdefault(row, []).append((found[0, :, mine], weight[0, :, mine]))
    for row, several in parts.items():
        weights = torch.stack([weight for _, weight in several])
        shares = torch.softmax(weights, dim=0).unsqueeze(-1)
        before[row, :, :group] = torch.stack([found for found, _ in several]).float().mul_(shares).sum(0)
        before_weight[row, :, :group] = torch.logsumexp(weights, dim=0)
    return before, before_weight


def _attend_whole(
    plan: StepPlan,
    layer: int,
    query: Tensor,
    numbers: list[int] | None,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Spans by one call each over all of their KV, gathered: for deterministic mode, accelerators, windows, soft caps.

    numbers: of the spans (None: all); the rows of others are left as they come.
    """
    out = torch.empty_like(query)
    whole = plan.whole(window) if numbers is None or numbers else []
    for rows, piece in whole if numbers is None else [whole[number] for number in numbers]:
        out[rows] = _dense(piece, layer, query[rows], scale, window, softcap)
    return out


def _dense(piece: Piece, layer: int, query: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    keys, values = piece.read(layer)
    return dense(query.transpose(0, 1)[None], keys, values, scale, window=window, softcap=softcap)[0].transpose(0, 1)


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
