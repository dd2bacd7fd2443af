"""What a policy cost over a whole recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from longturn.ledger import NO_USE, TokenUse


@dataclass(slots=True)
class Outcome:
    """Sums over all sessions. Tokens and money count everything; `aside` is the part of summaries in them.

    over: requests that were larger than the usable window, and were served in the replay nevertheless; born: edits at
    birth; withheld: tokens of results that were never sent whole; regret_content, regret_file, blind_edits: as in
    `Regret`; money: US dollars, None without prices.
    """

    policy: str
    use: TokenUse = NO_USE
    money: Decimal | None = None
    requests: int = 0
    over: int = 0
    largest: int = 0
    born: int = 0
    edits: int = 0
    epochs: int = 0
    withheld: int = 0
    regret_content: int = 0
    regret_file: int = 0
    blind_edits: int = 0
    aside_calls: int = 0
    aside_use: TokenUse = NO_USE
    aside_money: Decimal | None = None
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def regret(self) -> int:
        """Tokens that had been there, were dropped, and were read again."""
        return self.regret_content + self.regret_file

    def spent(self, use: TokenUse, money: Decimal | None, aside: bool = False) -> None:
        """One request was served. aside: for a summary."""
        self.use += use
        self.requests += not aside
        if money is not None:
            self.money = (self.money or Decimal()) + money
        if aside:
            self.aside_calls += 1
            self.aside_use += use
            if money is not None:
                self.aside_money = (self.aside_money or Decimal()) + money

    def to_json(self) -> dict[str, Any]:
        """All figures; money as a number."""
        return {
            "policy": self.policy,
            "money": _number(self.money),
            **self.use.to_dict(),
            "requests": self.requests,
            "over_window": self.over,
            "largest_request": self.largest,
            "edits_at_birth": self.born,
            "edits": self.edits,
            "epochs": self.epochs,
            "epoch_reasons": self.reasons,
            "withheld": self.withheld,
            "regret": self.regret,
            "regret_content": self.regret_content,
            "regret_file": self.regret_file,
            "blind_edits": self.blind_edits,
            "summaries": {
                "calls": self.aside_calls,
                "money": _number(self.aside_money),
                **self.aside_use.to_dict(),
            },
        }


def _number(money: Decimal | None) -> float | None:
    return None if money is None else round(float(money), 6)
