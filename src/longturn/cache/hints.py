"""What the application tells the cache. A hint acts on a range of tokens, so the cache needs no notion of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longturn.cache.radix import Tokens

HintKind = Literal["pin", "release", "supersede", "expect", "priority"]


@dataclass(frozen=True, eq=False)
class Hint:
    """Tokens `start` to `stop` of the sequence `tokens` (int32 [n], from the beginning of the prompt).

    pin: evict last, for `seconds`; release: this range is dead, evict first; supersede: the same, newer state replaces
    it; expect: back within `seconds`, evict after all that nobody expects; priority: evict in order of `level` under
    the order `priority`.
    """

    kind: HintKind
    tokens: Tokens
    start: int = 0
    stop: int | None = None
    seconds: float = 300.0
    level: int = 0
    salt: str = ""
