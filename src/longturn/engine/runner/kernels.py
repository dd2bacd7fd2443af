"""The kernels below the attention: what torch, FlashInfer or flash-attn offer on each device.

CPU: torch's flash kernel, which also gives the log-sum-exp. CUDA: FlashInfer or flash-attn where importable. Else SDPA.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# Rows of queries that torch's kernel takes at a time, or a multiple of them.
_BLOCK_ROWS = 32


def partial(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention on the CPU over one set of keys: results [b, heads, n, d] and their log-sum-exp, float32 [b, heads, n].

    query [b, heads, n, d], keys and values [b, heads, m, d] with any strides but the last; `causal` needs n == m,
    `mask` (float32 [b, 1, n, m]) is added to the scores.
    """
    n = query.shape[2]
    if n % _BLOCK_ROWS == 1 and not causal:
        # A block of a single row is summed in another order than the same row among others.
        query = nn.functional.pad(query, (0, 0, 0, 1))
        mask = None if mask is None else nn.functional.pad(mask.expand(-1, -1, n, -1), (0, 0, 0, 1))
    result, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, causal, attn_mask=mask, scale=scale
    )
    return result[:, :, :n], weight[:, :, :n]


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
