"""Context policies on recorded agent sessions: what they cost with each provider, and how long the lab takes.

    .venv/bin/python bench/lab_context.py TRACE [TRACE ...] [--provider anthropic ...] [--json out.json]

For each trace the recorded policy is first checked against the recorded usage. Then every policy is replayed with every
provider; the last columns say whether longturn's costs less at equal or lower regret than each other one. Seconds are
CPU seconds of one core, the check included.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from longturn.conversation.policies.registry import CONTEXT_POLICIES
from longturn.conversation.window import Window
from longturn.lab.context.compare import DEFAULT, Comparison, Question, compare
from longturn.lab.context.providers import PROVIDERS, Provider
from longturn.lab.context.replay import RECORDED

WINDOW = Window(200_000, 32_000)


def figures(trace: Path, provider: str) -> dict[str, Any]:
    """One trace with one provider: the comparison, and how long it took."""
    began = time.process_time()
    question = Question((RECORDED, *CONTEXT_POLICIES), Provider(provider), WINDOW, check=provider == "anthropic")
    found = compare(trace, question)
    seconds = time.process_time() - began
    show(found, seconds)
    return {"seconds": seconds, **found.to_json()}


def show(found: Comparison, seconds: float) -> None:
    """For people."""
    question = found.question
    print(f"{found.trace}, {question.provider.name}: {found.calls:,} calls, {seconds:.1f} s")
    for check in found.checks:
        print(
            f"  held out {check.sessions} sessions: input {check.input_error:+.2%}, cached {check.cached_error:+.2%}"
            f"{'' if check.good else ' (too far off)'}"
        )
    own = next(one for one in found.outcomes if one.policy == DEFAULT)
    for one in found.outcomes:
        cost, own_cost = (one.money, own.money) if one.money is not None else (one.use.computed, own.use.computed)
        better = "" if one is own else "better" if own_cost < cost and own.regret <= one.regret else "not on both"
        money = "-" if one.money is None else f"${one.money:,.2f}"
        print(
            f"  {one.policy:12} {money:>10} logical {one.use.logical:>12,} cached {one.use.cached_total:>12,} "
            f"computed {one.use.computed:>11,} over {one.over:>5,} epochs {one.epochs:>5,} regret {one.regret:>8,} "
            f"{better}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--provider", action="append", choices=PROVIDERS)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    rows = [figures(trace, provider) for trace in told.traces for provider in told.provider or PROVIDERS]
    if told.json:
        told.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
