"""Nothing is wrong with the requests: the prefix has expired, was not there yet, or is kept somewhere else."""

from __future__ import annotations

from longturn.explain import limits
from longturn.explain.exchange import Exchange
from longturn.explain.finding import Finding
from longturn.explain.pair import Pair

TOGETHER = 10.0
"""Seconds within which two requests may well have been under way at once."""
IDLE = 300.0
"""Seconds after which an automatic cache may let go of a prefix that nobody uses."""


def ttl_expired(pair: Pair) -> Finding | None:
    """More time has passed than the prefix is kept."""
    gap = pair.gap
    if gap is None or pair.hit:
        return None
    a = pair.a.prompt
    if a.marking != "automatic" and not a.marks and not (pair.a.use and pair.a.left):
        return None
    kept = [mark.index + 1 for mark in a.marks if gap <= _life(pair.a, mark.ttl)]
    life = _life(pair.a, a.marks[-1].ttl if a.marks else None)
    if gap > life:
        return Finding(
            f"{gap:,.0f} s have passed, and the prefix is kept for {life:,.0f} s", 0.9, kept=max(kept, default=0)
        )
    if a.marking == "automatic" and gap > IDLE and pair.hit is False:
        return Finding(f"{gap:,.0f} s have passed; an idle prefix is kept for minutes", 0.6, kept=0)
    return None


def life_changed(pair: Pair) -> Finding | None:
    """The same place was marked for another time to live: it is written again."""
    old = {mark.index: mark.ttl for mark in pair.a.prompt.marks}
    if pair.hit is not False:
        return None
    for mark in pair.b.prompt.marks:
        if mark.index in old and _life(pair.a, old[mark.index]) != _life(pair.b, mark.ttl):
            return Finding("the same place is marked for another time to live, and is written again", 0.65, kept=0)
    return None


def image_toggled(pair: Pair) -> Finding | None:
    """Anthropic keeps messages with and without images apart: the first image costs all of them."""
    if pair.b.prompt.provider != "anthropic" or pair.hit or not pair.append_only:
        return None
    if any(s.kind == "image" for s in pair.old) or not any(s.kind == "image" for s in pair.new):
        return None
    if pair.first_of(2) >= pair.a.marked:
        return None
    return Finding(
        "the first image of the conversation: messages with and without are kept apart", 0.7, kept=pair.first_of(2)
    )


def cold_fanout(pair: Pair) -> Finding | None:
    """Both were under way at once over the same prefix: neither found it, both wrote it."""
    if pair.b.use is None or pair.b.use.cached_total or not _together(pair):
        return None
    answered = any(s.role in ("assistant", "model") for s in pair.new[len(pair.old) :])
    shared = pair.a.tokens(pair.index)
    if answered or not pair.a.left or shared < pair.a.minimum or not (pair.last_turn or pair.append_only):
        return None
    when = "both" if pair.gap is None else f"both were sent within {abs(pair.gap):.1f} s and"
    return Finding(
        f"{when} computed about {shared:,} tokens that they have in common",
        0.6 if pair.gap is None else 0.85,
        kept=pair.index,
    )


def _together(pair: Pair) -> bool:
    """Whether both may have been under way at once: by their times, or else because both wrote as much."""
    if pair.gap is not None:
        return abs(pair.gap) <= TOGETHER
    a, b = pair.a.use, pair.b.use
    return (
        a is not None and b is not None and not a.cached_total and 0 < 0.9 * a.written <= b.written <= 1.1 * a.written
    )


def routing(pair: Pair) -> Finding | None:
    """All is as it should be, and yet nothing was found: it was asked for where it is not kept, or it was evicted."""
    if not pair.append_only or pair.hit is not False:
        return None
    promised = pair.b.prompt.marking != "automatic"
    return Finding(
        "the later request only appends and comes in time, yet its usage shows a miss",
        0.6 if promised else 0.45,
        kept=0,
    )


def _life(exchange: Exchange, ttl: str | None) -> float:
    """Seconds that a prefix is kept."""
    prompt = exchange.prompt
    asked = ttl or prompt.ttl
    if asked is None and prompt.marking == "implicit":
        asked = limits.BY_MARKS_LIFE
    if asked is None and prompt.marking == "explicit" and prompt.provider != "anthropic":
        asked = limits.BY_MARKS_LIFE
    if asked is None and prompt.provider.startswith("openai") and limits.KEPT_LONGER.search(prompt.model):
        asked = "24h"
    if asked is None and prompt.provider == "gemini" and prompt.handle is None:
        asked = "24h"
    return limits.LIVES.get(asked or "", limits.LIVES[limits.DEFAULT_LIFE[prompt.provider]])
