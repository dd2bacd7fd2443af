"""Longturn's context policy on real agent sessions, with the provider's rules and prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from longturn.conversation.window import Window
from longturn.lab.context.compare import Question, compare
from longturn.lab.context.providers import Provider

TRACE = Path(__file__).parents[4] / "shared" / "traces" / "coding_agent_b_structure.jsonl.gz"


def test_longturn_costs_less_at_no_more_regret() -> None:
    if not TRACE.exists():
        pytest.skip(f"{TRACE.name} is not beside this checkout")
    policies = ("longturn", "opencode", "clear-tools", "slide", "none")
    found = compare(TRACE, Question(policies, Provider("anthropic"), Window(200_000, 32_000), check=False))
    by_name = {one.policy: one for one in found.outcomes}
    own = by_name["longturn"]
    assert own.money is not None
    assert own.over == 0
    for name in ("opencode", "clear-tools", "slide"):
        other = by_name[name]
        assert other.money is not None
        assert own.money < other.money
        assert own.regret <= other.regret
    verdicts = {name: line for name in by_name for line in found.verdicts() if f"than {name}," in line}
    assert "not better on both" in verdicts["none"]  # which drops nothing, and does not fit
    assert "not better on both" not in verdicts["slide"]
    assert by_name["none"].over > 0
