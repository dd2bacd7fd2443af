"""How much of a prompt a step takes along while others decode: as much as their streams bear.

A step that computes part of a prompt besides the next token of each running request makes all of them wait. How long,
depends on the machine and on how far the prompt has got, so it is learned from the steps themselves.
"""

from __future__ import annotations

# A step may take so many times as long as one without a prompt; by chance some take longer.
MOST_STALL = 1.9
# Steps before the last count so much.
_MEMORY = 0.7
# Numbers of rows that linears compute without filling them up are multiples of this.
_ROWS = 64
# Prompts get on by so many tokens, whatever it takes.
_LEAST = 16
# After so many steps with prompts one goes without: how long those that decode take by themselves changes as they grow,
# and what is not known of it would be taken for the prompts'.
_STEPS_KNOWN = 64


class Pace:
    """most: tokens of prompts in a step, as long as nothing is known about how long they take."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle_s: float | None = None
        self._idle_of = 0
        self._steps = 0
        self._token_s: float | None = None

    def prompt_tokens(self, decoding: int) -> int:
        """How many tokens of prompts the next step may compute beside the next tokens of `decoding` requests.

        0 where it has to be learned first how long these take by themselves.
        """
        if not self._idle_of <= 2 * decoding <= 4 * self._idle_of or self._steps >= _STEPS_KNOWN:
            self._idle_s = None
        if self._idle_s is None:
            return 0
        if self._token_s is None:
            return self._most
        borne = int((MOST_STALL - 1) * self._idle_s / self._token_s)
        rows = (decoding + borne) // _ROWS * _ROWS
        return min(max(rows - decoding if rows > decoding else borne, _LEAST), self._most)

    def took(self, decoding: int, prompt: int, seconds: float) -> None:
        """Learn from a step that decoded so many, with so many tokens of prompts besides."""
        if not prompt:
            self._idle_s, self._idle_of, self._steps = _mixed(self._idle_s, seconds), decoding, 0
        elif self._idle_s is not None:
            self._steps += 1
            self._token_s = _mixed(self._token_s, max(seconds - self._idle_s, 1e-9) / prompt)


def _mixed(before: float | None, now: float) -> float:
    return now if before is None else _MEMORY * before + (1 - _MEMORY) * now
