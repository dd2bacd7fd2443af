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

    What the trace does not tell becomes symbols that nothing else has: an engine keeps them, and they take room, but no
    later prompt is seen to continue them.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.unknown_answers = 0
        self._dense: dict[int, int] = {}
        self._next = -1

    def written(self, request: TraceRequest) -> tuple[Tokens, Tokens]:
        """The prompt, int32 [n], and all there is in the end: the same with the answer behind it, last blocks that are
        filled in part included.

        A last block that the prompt fills in part is the one that the answer completes, where that is known. What the
        trace does not tell is unknown.
        """
        n_prompt = -(-request.prompt_tokens // self.unit)
        n = -(-(request.prompt_tokens + request.output_tokens) // self.unit)
        known = self._symbols(request.prompt)
        if request.output is not None:
            both = np.concatenate((known[: request.prompt_tokens // self.unit], self._symbols(request.output)))
            known = both if len(both) >= len(known) else known
        elif request.output_tokens:
            self.unknown_answers += 1
        whole = np.concatenate((known, self._unknown(n - len(known)))) if n > len(known) else known
        return whole[:n_prompt], whole

    def _unknown(self, n: int) -> Tokens:
        """So many new symbols."""
        if self._next - n < -_LARGEST:
            self._next = -1
        first, self._next = self._next, self._next - n
        return np.arange(first, self._next, -1, dtype=np.int32)

    def _symbols(self, blocks: Blocks) -> Tokens:
        ids = blocks.ids()
        if len(ids) and (ids.min() < 0 or ids.max() >= _NUMBERED):
            # Ids that are hashes do not fit: they are numbered as they come, behind all that do.
            dense = self._dense
            numbers = (i if 0 <= i < _NUMBERED else dense.setdefault(i, _NUMBERED + len(dense)) for i in ids.tolist())
            return np.fromiter(numbers, np.int32, len(ids))
        return ids.astype(np.int32)
