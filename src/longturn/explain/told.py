"""A verdict as plain text."""

from __future__ import annotations

from decimal import Decimal

from longturn.explain.money import dollars
from longturn.explain.verdict import Verdict


def told(verdict: Verdict, usd: Decimal | None = None) -> list[str]:
    """The lines that tell a person what was found: what, where, what was lost, what mends it. usd: what that has cost.

    The two texts at the divergence are the lines that begin with `- ` and `+ `.
    """
    meant = "intended: " if verdict.intentional else ""
    lines = [f"{verdict.mechanism}  ({meant}{verdict.confidence:.0%} sure, {verdict.provider})", f"{verdict.evidence}."]
    if place := verdict.first_divergence:
        lines += [
            "",
            f"First difference in {place.segment}, {place.json_path}, byte {place.offset:,}:",
            f"- {_line(place.before)}",
            f"+ {_line(place.after)}",
        ]
    if verdict.lost_tokens:
        cost = "" if usd is None else f", for {dollars(usd)}"
        lines += ["", f"About {verdict.lost_tokens:,} tokens had to be computed anew{cost}."]
    if verdict.mechanism != "none":
        lines += ["", f"To mend it: {verdict.fix}"]
    return lines


def _line(text: str) -> str:
    """A piece of text on one line."""
    return text.encode("unicode_escape").decode() if not text.isprintable() else text
