"""Whether an edit pays: what it saves with every request to come, against the cache that it breaks once.

In units of an uncached input token. Dropping D tokens saves D * read with each of R requests that are still expected,
or D * write with the first of them where the cache is cold. With probability p what was dropped is wanted again, and is
then written anew: p * D * write. And what is left behind system text and tools, B tokens, is written instead of read,
B * (write - read), unless it is cold anyway. B is not only what lies behind the first change: providers look for
entries near the end of a prompt only (Anthropic 20 positions back), so the part before the change is mostly lost too.

    warm: D * read * R > B * (write - read) + p * D * write
    cold: D * (write + read * (R - 1)) > p * D * write

R is not known. It is taken to be as many as have carried the dropped tokens in vain so far: then an edit is made when
the vain reads have cost what the edit costs, and never costs more than twice what the best foresight could have saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """Relative to an uncached input token. read: a cached one; write: one that is written to the cache."""

    read: float = 0.1
    write: float = 1.25


@dataclass(frozen=True, slots=True)
class Dead:
    """Tokens that a batch may drop: how many, with how many requests they were carried in vain, and how likely they
    are wanted again."""

    tokens: int
    carried: float
    wanted: float

    def gain(self, prices: Prices, cold: bool) -> float:
        """What dropping them saves, less what it costs when they are wanted again."""
        once = prices.write - prices.read if cold and self.carried else 0.0
        return self.tokens * (once + prices.read * self.carried - self.wanted * prices.write)


def saving(dead: Iterable[Dead], left: int, prices: Prices, cold: bool) -> float:
    """What a batch saves, by the rule: positive where it pays. left: tokens that stay behind system text and tools."""
    broken = 0.0 if cold else left * (prices.write - prices.read)
    return sum(one.gain(prices, cold) for one in dead) - broken
