"""The kernels below the attention: what torch, FlashInfer or flash-attn offer on each device.

CPU: torch's flash kernel, which also gives the log-sum-exp. CUDA: FlashInfer or flash-attn where importable. Else SDPA.

The flash kernel takes queries in blocks, and how it sums depends on how many rows are in one: on Intel's CPUs a single
row is summed in another order than among others, on AMD's two or three rows are as well. So blocks are filled up to
numbers of rows that agree, which are tried when a model is loaded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from longturn.engine.runner.rounding import PERIOD, paired, repeated, repeats

# Rows of queries that torch's kernel takes at a time, or a multiple of them, by how many there are.
_BLOCK_ROWS = 32
_BLOCKS_FROM = (0, 192, 768)
# Numbers of keys to try: a tile, which is half of the kernel's block of keys, and a block and a half.
_TILE, _LONGER = 256, 768
# Makes scores of what rounding leaves of them.
_SCALE = 1e4
# A block is not filled up by more rows than this: it would cost more than equal bits are worth.
_MOST_ADDED = 8

Filling = tuple[int, ...]
"""How many rows to add to a block of so many: the index is the number of rows, modulo 32."""
AS_THEY_COME: Filling = (0,) * _BLOCK_ROWS


def partial(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    filling: Filling = AS_THEY_COME,
) -> tuple[Tensor, Tensor]:
    """Attention on the CPU over one set of keys: results [b, heads, n, d] and their log-sum-exp, float32 [b, heads, n].

    query [b, heads, n, d], keys and values [b, heads, m, d] with any strides but the last; `causal` needs n == m,
    `mask` (float32 [b, 1, n, m]) is added to the scores.
    """
    n = query.shape[2]
    added = 0 if causal else filling[n % _BLOCK_ROWS]
    if added:
        query = nn.functional.pad(query, (0, 0, 0, added))
        mask = None if mask is None else nn.functional.pad(mask.expand(-1, -1, n, -1), (0, 0, 0, added))
    result, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, causal, attn_mask=mask, scale=scale
    )
    return (result[:, :, :n], weight[:, :, :n]) if added else (result, weight)


def filled(query: Tensor, filling: Filling) -> Tensor:
    """The query [b, heads, n, d] with the rows that `partial` would add: for several calls with the same."""
    added = filling[query.shape[2] % _BLOCK_ROWS]
    return nn.functional.pad(query, (0, 0, 0, added)) if added else query


@cache
def find_filling(kv_heads: int, dim: int, threads: int) -> Filling | None:
    """What makes a row's bfloat16 result the same whatever the number of rows beside it; None where nothing does."""
    # One head is a case of its own: then threads may share in a product.
    heads = min(kv_heads, 2)
    one_tile = [_Try(heads, dim, _TILE, of_values) for of_values in (False, True)]
    longer = [_Try(heads, dim, _LONGER, of_values) for of_values in (False, True)]
    sizes = [
        n
        for n in range(1, _BLOCK_ROWS + 1)
        if all(one.agrees(rows + n) for rows in _BLOCKS_FROM for one in one_tile + longer)
    ]
    if _BLOCK_ROWS not in sizes or not all(one.causal_agrees() for one in one_tile):
        return None
    added = (0, *(next(size for size in sizes if size >= n) - n for n in range(1, _BLOCK_ROWS)))
    return added if max(added) <= _MOST_ADDED else None


class _Try:
    """The kernel over m keys, on numbers that show in which order it sums products with keys, or with values."""

    def __init__(self, kv_heads: int, dim: int, m: int, of_values: bool) -> None:
        query, keys, values = paired(1, PERIOD, dim), paired(-1, m, dim), paired(1, m, dim)
        if of_values:
            query, values = torch.zeros_like(query), paired(-1, dim, m).T.contiguous()
        self._query, self._keys, self._values = (
            tensor.expand(1, kv_heads, -1, -1)
            for tensor in (repeated(query, _BLOCKS_FROM[-1] + _BLOCK_ROWS), keys, values)
        )
        self._expected = self._blocks(2 * _BLOCK_ROWS)[:, :, :PERIOD]

    def agrees(self, n: int) -> bool:
        """Whether n rows give what the same rows give in full blocks."""
        return repeats(self._computed(0, n), self._expected)

    def causal_agrees(self) -> bool:
        """Whether a causal call gives what a mask does."""
        n = self._keys.shape[2]
        mask = torch.full((1, 1, n, n), -torch.inf).triu(1)
        return torch.equal(self._computed(0, n, causal=True), self._blocks(n, mask))

    def _blocks(self, n: int, mask: Tensor | None = None) -> Tensor:
        starts = range(0, n, _BLOCK_ROWS)
        masks = [None if mask is None else mask[:, :, start : start + _BLOCK_ROWS] for start in starts]
        return torch.cat(
            [self._computed(at, at + _BLOCK_ROWS, mask=part) for at, part in zip(starts, masks, strict=True)], 2
        )

    def _computed(self, start: int, stop: int, *, causal: bool = False, mask: Tensor | None = None) -> Tensor:
        query = self._query[:, :, start:stop]
        result, weight = partial(query, self._keys, self._values, _SCALE, causal=causal, mask=mask)
        return torch.cat((result.float(), weight.unsqueeze(-1)), -1)


def dense(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, window: int | None, softcap: float | None
) -> Tensor:
    """Causal attention of the last n of m tokens: query [1, heads, n, d], keys and values [1, kv_heads, m, d].

    With `window` a token sees itself and `window - 1` before it. Returns [1, heads, n, d].
    """
    if query.device.type == "cuda" and query.dtype != torch.float32:
        if (flashinfer := _importable("flashinfer")) is not None:
            result = flashinfer.single_prefill_with_kv_cache(
                query[0].transpose(0, 1).contiguous(),
                keys[0].transpose(0, 1).contiguous(),
                values[0].transpose(0, 1).contiguous(),
                causal=True,
                sm_scale=scale,
                window_left=-1 if window is None else window - 1,
                logits_soft_cap=softcap,
            )
            return result.transpose(0, 1)[None]  # type: ignore[no-any-return]
        if (flash := _importable("flash_attn")) is not None:
            result = flash.flash_attn_func(
                query.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                softmax_scale=scale,
                causal=True,
                window_size=(-1, -1) if window is None else (window - 1, 0),
                softcap=softcap or 0.0,
            )
            return result.transpose(1, 2)  # type: ignore[no-any-return]
    n, m = query.shape[2], keys.shape[2]
    mask = None
    if n > 1 or (window is not None and m > window):
        behind = torch.arange(m - n, m, device=query.device)[:, None] - torch.arange(m, device=query.device)[None]
        mask = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    if softcap is None:
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    scores = torch.matmul(query.float(), keys.float().transpose(2, 3)) * scale
    scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), values.float()).to(query.dtype)


@cache
def _importable(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None
