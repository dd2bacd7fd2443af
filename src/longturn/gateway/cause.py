"""`Cause`: why a cached prefix was missed, by the engine's own word where its answer has one, else by comparison."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.dialects.segments.form import as_dict
from longturn.explain import Exchange, Verdict
from longturn.explain.exchange import ENGINE
from longturn.explain.miss import Miss
from longturn.explain.pair import Pair

MEANT = ("cleared", "below_page")
"""What no request could mend: somebody emptied the cache, or it keeps whole pages only."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a miss is put down to.

    mechanism: of `longturn.explain`, or what our own engine calls it. lost: tokens that mending it would have had
    cached. verdict: of the comparison, where that has found the cause.
    """

    mechanism: str
    lost: int
    confidence: float = 1.0
    intentional: bool = False
    verdict: Verdict | None = None

    def __str__(self) -> str:
        at = self.verdict.first_divergence if self.verdict else None
        return f"{self.mechanism} at {at.segment}, byte {at.offset:,}" if at else self.mechanism


def engine_said(exchange: Exchange) -> str | None:
    """What our own engine says was missed: a sentence, empty where nothing was. None: no such engine has answered."""
    line = as_dict(exchange.usage.get(ENGINE))
    return str(line["miss"] or "") if "miss" in line else None


def cause_of(exchange: Exchange, pair: Pair | None, verdict: Verdict | None) -> Cause | None:
    """Why `exchange` has missed something; None where it has not, or nobody knows.

    pair, verdict: with the request that it continues, and what comparing them shows; None where it begins something.

    An engine knows what its cache has lost, and its word on that is final. Where it says that the prompt is another
    than before, the comparison says what has changed in it.
    """
    guess = _compared(pair, verdict) if pair and verdict else None
    said = engine_said(exchange)
    if said is None:
        return guess
    miss = Miss.read(said)
    if miss is None:
        return None
    if miss.parted:
        if verdict is None or (guess and verdict.first_divergence):
            return guess
        if not verdict.append_only:
            return None
    lost = miss.tokens or (guess.lost if guess else 0)
    return Cause(miss.cause, lost, intentional=miss.cause in MEANT) if lost else None


def _compared(pair: Pair, verdict: Verdict) -> Cause | None:
    lost = _lost(pair, verdict)
    if not lost or verdict.mechanism == "none":
        return None
    return Cause(verdict.mechanism, lost, verdict.confidence, verdict.intentional, verdict)


def _lost(pair: Pair, verdict: Verdict) -> int:
    """Tokens that mending the cause would have had cached."""
    if verdict.mechanism == "no_marks" and not verdict.lost_tokens and pair.b.use is not None:
        # Nothing was kept, so nothing was lost; but all that both have in common could have been.
        shared = pair.a.tokens(pair.index)
        return max(0, shared - pair.b.use.cached_total) if shared >= pair.a.minimum else 0
    return verdict.lost_tokens
