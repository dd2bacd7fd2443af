"""Prompts of a trace as the int32 arrays that caches work on."""

from __future__ import annotations

import numpy as np

from longturn.cache import Tokens
from longturn.lab.trace import Blocks, TraceRequest

_LARGEST = np.iinfo(np.int32).max
# Ids below this are symbols as they are.
_NUMBERED = 1 << 30


class Symbols:
    """Turns blocks into symbols, one int32 per block, equal where the ids are.

    Answers that the trace does not tell become symbols that nothing else has: an engine keeps them, and they take room,
    but no later prompt is seen to continue them.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.unknown_answers = 0
        self._dense: dict[int, int] = {}
        self._unknown = -1

    def written(self, request: TraceRequest) -> tuple[Tokens, Tokens]:
        """The prompt, int32 [blocks], and all there is in the end: the same with the answer behind it.

        A last block that the prompt fills in part is the one that the answer completes, where that is known.
        """
        prompt = self._symbols(request.prompt)
        if request.output is not None:
            whole = np.concatenate((prompt[: request.prompt_tokens // self.unit], self._symbols(request.output)))
            return (whole[: len(prompt)], whole) if len(whole) >= len(prompt) else (prompt, prompt)
        n = -(-request.output_tokens // self.unit)
        self.unknown_answers += n > 0
        answer = np.arange(self._unknown, self._unknown - n, -1, dtype=np.int32)
        self._unknown = self._unknown - n if self._unknown - n > -_LARGEST else -1
        return prompt, np.concatenate((prompt, answer))

    def _symbols(self, blocks: Blocks) -> Tokens:
        ids = blocks.ids()
        if len(ids) and (ids.min() < 0 or ids.max() >= _NUMBERED):
            # Ids that are hashes do not fit: they are numbered as they come, behind all that do.
            dense = self._dense
            numbers = (i if 0 <= i < _NUMBERED else dense.setdefault(i, _NUMBERED + len(dense)) for i in ids.tolist())
            return np.fromiter(numbers, np.int32, len(ids))
        return ids.astype(np.int32)
