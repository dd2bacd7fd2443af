"""Marks: none at all, none where something was kept, too far from it, or on too short a prefix."""

from __future__ import annotations

from longturn.dialects.segments import Mark, Segment
from longturn.explain import limits
from longturn.explain.finding import Finding
from longturn.explain.pair import Pair

SHORTEST = min(tokens for _, tokens in limits.MINIMUMS["anthropic"])
"""Tokens below which a prefix is too short for any model: plain to see, and no verdict unless the usage shows it."""


def no_marks(pair: Pair) -> Finding | None:
    """Caching has to be asked for, and the later request does not."""
    b = pair.b
    if b.prompt.provider == "anthropic" and _marks_dropped(pair):
        return Finding(
            "the later request's last mark stands ahead of the earlier one's, and its usage shows a miss", 0.7
        )
    if b.prompt.marking != "explicit" or b.prompt.marks or (b.use and (b.use.cached_total or b.use.written)):
        return None
    if b.prompt.provider == "anthropic" and pair.a.prompt.marks:
        return Finding("the earlier request has marks, the later one none", 0.8, kept=0)
    if pair.a.prompt.marks or b.logical < b.minimum:
        return None
    return Finding(f"about {b.logical:,} tokens are sent without any mark", 0.9 if b.use else 0.8, kept=0)


def _marks_dropped(pair: Pair) -> bool:
    old, new = pair.a.prompt.marks, pair.b.prompt.marks
    return pair.hit is False and bool(old) and bool(new) and new[-1].index < old[-1].index


def nothing_kept(pair: Pair) -> Finding | None:
    """The prefix is too short to be cached, and the usage shows it: nothing was found, nothing was kept."""
    a, b = pair.a, pair.b
    reported = [e.use for e in (a, b) if e.use is not None]
    if not reported or (b.prompt.marking == "explicit" and not b.prompt.marks):
        return None
    if any(use.cached_total or use.written for use in reported):
        return None
    tokens = b.tokens(b.marked)
    return _too_short(pair, tokens, 0.9) if tokens < b.minimum else None


def below_minimum(pair: Pair) -> Finding | None:
    """The marked prefix would do for some models, and seems too short for this one."""
    b = pair.b
    tokens = b.tokens(b.marked)
    if b.use is not None or b.prompt.provider != "anthropic" or not b.prompt.marks:
        return None
    return _too_short(pair, tokens, 0.6) if SHORTEST <= tokens < b.minimum else None


def _too_short(pair: Pair, tokens: int, confidence: float) -> Finding:
    least = pair.b.minimum
    return Finding(
        f"about {tokens:,} tokens are to be cached, and {least:,} are the least that is", confidence, kept=len(pair.old)
    )


def lookback_exceeded(pair: Pair) -> Finding | None:
    """What the earlier request has written lies more positions back than a mark looks."""
    if pair.hit:
        return None
    written = _written(pair)
    if not written:
        return None
    if pair.b.prompt.provider == "anthropic":
        places = positions(pair.new)
        reached = [w for w in written if any(0 <= places[m.index] - places[w] < limits.LOOKBACK for m in _marks(pair))]
        nearest = min(
            (places[m.index] - places[written[-1]] for m in _marks(pair) if m.index >= written[-1]), default=0
        )
        if nearest < limits.LOOKBACK:
            return None
    else:
        reached = [w for w in written if w in _looked_up(pair)]
        ends = [m.index for m in _marks(pair) if m.automatic]
        nearest = sum(end > written[-1] for end in ends)
        if written[-1] in reached or written[-1] not in ends or nearest <= limits.LOOKBACK:
            return None
    return Finding(
        f"the nearest mark stands {nearest} positions behind what was written last; it looks back {limits.LOOKBACK}",
        0.85,
        kept=max(reached, default=-1) + 1,
    )


def marks_not_resent(pair: Pair) -> Finding | None:
    """OpenAI from gpt-5.6 on finds a prefix only where the current request has a mark: none is where it was kept."""
    if pair.b.prompt.provider == "anthropic" or pair.b.prompt.marking == "automatic" or pair.hit:
        return None
    written = _written(pair)
    looked_up = _looked_up(pair)
    if not written or written[-1] in looked_up:
        return None
    reached = [index for index in written if index in looked_up]
    modes = pair.a.prompt.marking, pair.b.prompt.marking
    how = f"marking goes from {modes[0]} to {modes[1]}" if modes[0] != modes[1] else "its marks were not sent again"
    return Finding(
        f"no mark stands where the earlier request had its last: {how}", 0.9, kept=max(reached, default=-1) + 1
    )


def positions(segments: tuple[Segment, ...]) -> list[int]:
    """Anthropic's count of positions: each segment is one, a run of calls is one, and a run of results is one."""
    places: list[int] = []
    for i, segment in enumerate(segments):
        run = i > 0 and segment.kind in ("tool_use", "tool_result") and segments[i - 1].kind == segment.kind
        places.append(places[-1] + (not run) if places else 0)
    return places


def _marks(pair: Pair) -> tuple[Mark, ...]:
    return pair.b.prompt.marks


def _written(pair: Pair) -> list[int]:
    """Segments up to which the earlier request left something: its marks; of the implied ones only the last."""
    marks = pair.a.prompt.marks
    implied = [mark.index for mark in marks if mark.automatic]
    named = [mark.index for mark in marks if not mark.automatic]
    return sorted({*named[-limits.MARKS :], *implied[-1:]})


def _looked_up(pair: Pair) -> set[int]:
    """Segments at whose ends OpenAI looks for something in the later request."""
    implied = [mark.index for mark in pair.b.prompt.marks if mark.automatic]
    named = [mark.index for mark in pair.b.prompt.marks if not mark.automatic]
    heads = [i for i in implied if pair.new[i].level == "system"]
    return {*named[:2], *named[-50:], *implied[-limits.LOOKBACK - 1 :], *heads}
