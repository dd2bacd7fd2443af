"""All policies on one trace: sizes, tiers, load, routing, and what of it matters."""

from longturn.lab.compare.compare import SHARES, Comparison, Question, compare
from longturn.lab.compare.source import Source

__all__ = ["SHARES", "Comparison", "Question", "Source", "compare"]
