"""How much of a prompt a step takes along while others decode: as much as their streams bear.

A step that computes part of a prompt besides the next token of each running request makes all of them wait. How long,
depends on the machine and on how far the prompt has got, so it is learned from the steps themselves. Far into a prompt
few tokens take nearly as long as many, since all of their past is read for them. So where the runner can, it is the
layers that are divided among steps instead (layered prefill: Lee et al. 2025): some tokens go through some layers in
each.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median

# A step may take so many times as long as one without a prompt; by chance some take longer.
MOST_STALL = 1.75
# Of so many steps the middle one counts: by chance some take far longer.
_LAST = 7
# Numbers of rows that linears compute without filling them up are multiples of this.
_ROWS = 64
# Prompts get on by so many tokens, whatever it takes, where they have to go through all layers.
_LEAST = 16
# After so many steps with prompts one goes without: how long those that decode take by themselves changes as they grow,
# and what is not known of it would be taken for the prompts'.
_STEPS_KNOWN = 64


class Pace:
    """most: tokens of prompts in a step; layers: by how many they may be computed one after the other, 1 if only by all
    at once."""

    def __init__(self, most: int, layers: int = 1) -> None:
        self._most = most
        self._layers = layers
        # Seconds of steps without prompts; tokens of prompts in those with, and seconds of each.
        self._idle_s: deque[float] = deque(maxlen=_LAST)
        self._prompt: deque[float] = deque(maxlen=_LAST)
        self._token_s: deque[float] = deque(maxlen=_LAST)
        self._idle_of = 0
        self._steps = 0

    def budget(self, decoding: int) -> float:
        """How many tokens of prompts the next step may compute beside the next tokens of `decoding` requests.

        Tokens that go through some of the layers count as so much less. 0 where it has to be learned first how long
        the step takes by itself.
        """
        if not self._idle_of <= 2 * decoding <= 4 * self._idle_of:
            self._idle_s.clear()
        if not self._idle_s or self._steps >= _STEPS_KNOWN:
            return 0
        least = max(_ROWS / self._layers, 1) if self._layers > 1 else _LEAST
        if not self._token_s:
            return min(least, self._most)
        borne = (MOST_STALL - 1) * median(self._idle_s) / median(self._token_s)
        # Where little has been tried, nothing is known of much.
        return min(max(min(borne, 2 * max(self._prompt)), least), self._most)

    def tokens(self, budget: float, decoding: int) -> int:
        """How many tokens to take at a time of a prompt that may have so much of a step."""
        rows = int(decoding + budget) // _ROWS * _ROWS
        if rows > decoding:
            return rows - decoding
        return int(budget) if self._layers == 1 else ceil((decoding + _LEAST) / _ROWS) * _ROWS - decoding

    def until(self, budget: float, n: int, layer: int) -> int:
        """To which layer n tokens get from `layer` on, for so much of a step; all their steps take about as long."""
        left, borne = self._layers - layer, budget * self._layers / n
        return layer + max(min(round(left / ceil(left / borne)), int(borne)), 1)

    def took(self, decoding: int, prompt: float, seconds: float) -> None:
        """Learn from a step that decoded so many, with so many tokens of prompts besides."""
        if not prompt:
            self._idle_s.append(seconds)
            self._idle_of, self._steps = decoding, 0
        elif self._idle_s:
            self._steps += 1
            self._prompt.append(prompt)
            self._token_s.append(max(seconds - median(self._idle_s), 1e-9) / prompt)
