"""What a recording does not tell and is fitted: characters per token, the fixed prefix, how long its entries live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from longturn.conversation.item import Item
from longturn.lab.context.reasoning import strips_reasoning
from longturn.lab.context.sessions import Call, Piece, Recorded
from longturn.lab.trace.text import IMAGE_TOKENS

KINDS = ("result", "call", "text", "reasoning")
MINUTES, HOUR = 300.0, 3600.0
"""The two lives of an entry that Anthropic offers, in seconds."""
FEW_CALLS = 20
"""Fewer pairs of calls than this tell nothing about characters per token."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How long parts are. result, call, text, reasoning: tokens per character; part: tokens that each part adds."""

    result: float = 1 / 2.8
    call: float = 1 / 2.8
    text: float = 1 / 2.8
    reasoning: float = 1 / 2.8
    part: float = 0.0

    def tokens(self, piece: Piece) -> int:
        """Tokens of a part."""
        if piece.kind == "file":
            return IMAGE_TOKENS
        return max(1, round(piece.chars * float(getattr(self, piece.kind)) + self.part))

    def items(self, pieces: Iterable[Piece]) -> list[Item]:
        """Parts as items of a view."""
        items = []
        for piece in pieces:
            tokens = self.tokens(piece)
            items.append(
                Item(
                    message=piece.message,
                    part=piece.part,
                    role=piece.role,
                    kind=piece.kind,
                    turn=piece.turn,
                    tokens=tokens,
                    whole_tokens=tokens,
                    content=piece.content,
                    tool=piece.tool,
                    call=piece.call,
                    resource=piece.resource,
                    synthetic=piece.synthetic,
                    error=piece.error,
                )
            )
        return items


@dataclass(frozen=True, slots=True)
class Fitted:
    """All that was fitted.

    head: tokens of system prompt, tools and memory before the first message, typically; after: the same after a
    compaction, with what the recording program put back unseen; shared: leading tokens of the head that others keep
    cached; static: leading tokens of the head that all sessions of a model have in common; hour_from: unix seconds from
    which on the recording program asked for entries that live an hour, None if it never did, 0.0 if always.
    """

    rates: Rates
    head: int
    after: int
    shared: int
    static: int
    hour_from: float | None
    sessions: int

    def ttl(self, time: float) -> float:
        """Seconds that an entry of the recorded client lives."""
        return HOUR if self.hour_from is not None and time >= self.hour_from else MINUTES

    def to_json(self) -> dict[str, Any]:
        """All of it, with characters per token as people say it."""
        rates = {kind: round(1 / rate, 2) for kind in KINDS if (rate := getattr(self.rates, kind)) > 0}
        return {
            **asdict(self),
            "rates": {"characters_per_token": rates, "tokens_per_part": round(self.rates.part, 1)},
        }


def fit(sessions: Sequence[Recorded]) -> Fitted:
    """Fit to the reported usage of some sessions. Without reported usage the defaults stand."""
    rates = _rates(sessions)
    heads = [unseen for session in sessions if (unseen := head_of(session, rates)) > 0]
    typical = round(median(heads)) if heads else 0
    compacted = [call for session in sessions for call in session.calls if call.compacted and call.usage.prompt]
    after = [call.usage.prompt - _seen(call, rates) for call in compacted]
    firsts = [first.cache_read_input_tokens or 0 for session in sessions if (first := session.calls[0].usage).prompt]
    shared = min(round(median(firsts)) if firsts else 0, typical)
    static = [call.usage.cache_read_input_tokens or 0 for call in compacted]
    return Fitted(
        rates=rates,
        head=typical,
        after=round(median(after)) if after else typical,
        shared=shared,
        static=min(max(round(median(static)) if static else 0, shared), typical),
        hour_from=_hour_from(sessions),
        sessions=len(sessions),
    )


def head_of(session: Recorded, rates: Rates) -> int:
    """Tokens of a session's first prompt that the recording does not show; 0 where no usage was reported."""
    first = session.calls[0]
    return max(0, first.usage.prompt - _seen(first, rates))


def _seen(call: Call, rates: Rates) -> int:
    return sum(map(rates.tokens, (*call.summary, *call.before)))


def _rates(sessions: Sequence[Recorded]) -> Rates:
    """By least squares over how prompts grew from one call to the next; never below 0."""
    rows, grown = [], []
    for session in sessions:
        for earlier, call in pairwise(session.calls):
            growth = call.usage.prompt - earlier.usage.prompt
            said = [*earlier.answer, *call.before]
            stripped = strips_reasoning(call.model) and len({piece.turn for piece in said}) > 1
            if call.compacted or call.model != earlier.model or growth <= 0 or not earlier.usage.prompt or stripped:
                continue
            chars: Counter[str] = Counter()
            for piece in said:
                chars[piece.kind] += piece.chars
            rows.append([*(chars[kind] for kind in KINDS), len(said)])
            grown.append(growth - IMAGE_TOKENS * sum(piece.kind == "file" for piece in said))
    if len(rows) < FEW_CALLS:
        return Rates()
    found = _not_negative(np.array(rows, dtype=float), np.array(grown, dtype=float))
    return Rates(*map(float, found))


def _not_negative(rows: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Least squares where columns whose weight would be negative are left out, the worst first."""
    kept = list(range(rows.shape[1]))
    while True:
        weights = np.zeros(rows.shape[1])
        weights[kept] = np.linalg.lstsq(rows[:, kept], wanted, rcond=None)[0]
        worst = int(weights.argmin())
        if weights[worst] >= 0:
            return weights
        kept.remove(worst)


def _hour_from(sessions: Sequence[Recorded]) -> float | None:
    """The moment that best parts pauses of 6 to 55 minutes after which nothing was cached from those with a hit."""
    pauses = []
    for session in sessions:
        for earlier, call in pairwise(session.calls):
            pause = call.time - earlier.end
            if 1.2 * MINUTES < pause < 0.9 * HOUR and not call.compacted and call.model == earlier.model:
                hit = (call.usage.cache_read_input_tokens or 0) > 0.5 * earlier.usage.prompt
                pauses.append((call.time, hit))
    pauses.sort()

    # Before the moment each hit is an error, from it on each miss.
    def wrong(n: int) -> int:
        return sum(hit for _, hit in pauses[:n]) + sum(not hit for _, hit in pauses[n:])

    best = min(range(len(pauses) + 1), key=lambda n: (wrong(n), -n))
    if best == len(pauses):
        return None
    return pauses[best][0] if best else 0.0
