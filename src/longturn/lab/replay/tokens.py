"""Prompts of a trace as token ids, for engines: blocks are written out, and shortened to fit a small window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from longturn.cache import Tokens
from longturn.lab.trace import Blocks, TraceRequest

_MULTIPLIER = 0x9E3779B97F4A7C15


class TokenWriter:
    """Turns requests into token ids below `vocab`, equal where the trace's blocks are equal.

    unit: tokens per block of the trace; scale: every length becomes so much shorter, with the same sharing: a block of
    several tokens becomes fewer, of token ids only every scale-th is kept. vocab: ids are drawn from the upper half of
    so many, away from special tokens at the beginning.
    """

    def __init__(self, unit: int, vocab: int, scale: int = 1) -> None:
        self._unit = unit
        self._per_block = max(round(unit / scale), 1)
        self._stride = scale if unit == 1 else 1
        self._scale = unit / self._per_block if unit > 1 else scale
        self._low, self._range = vocab // 2, vocab - vocab // 2
        self._unknown = 1 << 48

    def request(self, request: TraceRequest) -> tuple[Tokens, Tokens]:
        """Prompt and answer, int32 [n] and [m]; both at least one token. What the trace does not tell is like nothing
        else."""
        n_prompt = self._scaled(request.prompt_tokens)
        n = n_prompt + max(round(request.output_tokens / self._scale), 1)
        known = self._written(request.prompt)[:n_prompt]
        if request.output is not None:
            # What continues the prompt's whole blocks also says what its last one is filled up with.
            whole = request.prompt.part(0, request.prompt_tokens // self._unit)
            both = self._written(Blocks.join(whole, request.output))[:n]
            known = both if len(both) >= len(known) else known
        unknown = np.arange(self._unknown, self._unknown + n - len(known), dtype=np.int64)
        self._unknown += len(unknown)
        tokens = np.concatenate((known, self._below_vocab(unknown)))
        return tokens[:n_prompt], tokens[n_prompt:]

    def _scaled(self, tokens: int) -> int:
        return max(-(-tokens // self._stride) if self._unit == 1 else round(tokens / self._scale), 1)

    def _written(self, blocks: Blocks) -> Tokens:
        ids = blocks.ids()
        if self._unit == 1:
            return self._below_vocab(ids[:: self._stride])
        n = self._per_block
        return self._below_vocab((ids[:, None] * n + np.arange(n)).reshape(-1))

    def _below_vocab(self, ids: npt.NDArray[np.integer]) -> Tokens:
        mixed = ids.astype(np.uint64) * np.uint64(_MULTIPLIER)
        return (self._low + (mixed >> np.uint64(20)) % np.uint64(self._range)).astype(np.int32)
