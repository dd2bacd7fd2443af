"""Why was a cached prefix missed? Two requests of one conversation in, a verdict out. No I/O, nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.explain.detectors.refused import lints
from longturn.explain.exchange import Exchange
from longturn.explain.finding import Finding
from longturn.explain.pair import Pair
from longturn.explain.table import ANYWHERE, APPENDED, CONTENT, FIXES, MECHANISMS
from longturn.explain.verdict import Divergence, Lint, Verdict

__all__ = ["MECHANISMS", "Divergence", "Exchange", "Lint", "Verdict", "explain", "explain_exchanges", "lint"]

INTENDED = "Nothing to mend if it was meant: the first request after a compaction pays for the new prefix."


def explain(a: Mapping[str, Any], b: Mapping[str, Any], provider: str) -> Verdict:
    """Why request `b` could not reuse what the earlier request `a` left in the provider's cache.

    a, b: bodies of requests, or {"request": body, "usage": the provider's usage object, "time": seconds or ISO 8601}.
    provider: one of `longturn.dialects.segments.PROVIDERS`. Raises ConfigError where a or b is no such object.
    """
    return explain_exchanges(Exchange.read(a, provider), Exchange.read(b, provider))


def explain_exchanges(a: Exchange, b: Exchange) -> Verdict:
    """The same for requests that have been read already; both must be of one provider."""
    pair = Pair(a, b)
    mechanism, finding = _first(pair)
    divergence = finding.at or pair.divergence
    reusable = pair.index if finding.kept is None else finding.kept
    return Verdict(
        provider=b.prompt.provider,
        mechanism=mechanism,
        first_divergence=divergence,
        lost_tokens=0 if mechanism == "none" else pair.lost_from(reusable),
        append_only=pair.append_only,
        fix=INTENDED if finding.intentional else FIXES[mechanism],
        confidence=finding.confidence,
        evidence=finding.evidence,
        intentional=finding.intentional,
        lints=lints(b),
    )


def lint(request: Mapping[str, Any], provider: str) -> tuple[Lint, ...]:
    """What is wrong with one request alone. Takes what `explain` takes, and raises what it raises."""
    return lints(Exchange.read(request, provider))


def _first(pair: Pair) -> tuple[str, Finding]:
    """The first mechanism whose detector has seen something."""
    harmless = pair.last_turn and pair.behind_marks
    content = () if pair.append_only or harmless else CONTENT
    for mechanism, detect in (*ANYWHERE, *content, *(APPENDED if not content else ())):
        if finding := detect(pair):
            return mechanism, finding
    if pair.append_only:
        return "none", Finding("the later request begins with all of the earlier one", 0.9)
    return "none", Finding("nothing that was cached differs: both part in their newest message", 0.6)
