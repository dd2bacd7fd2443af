"""`Budgets`: what each API key may spend. Keys are known by their hash only."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from longturn.errors import ConfigError

PERIODS = ("day", "month", "total")


@dataclass(frozen=True, slots=True)
class Budget:
    """US dollars in a period: a UTC day or month, or in all."""

    usd: float
    period: str = "total"

    @classmethod
    def read(cls, text: str) -> Budget:
        """From `5`, `5/day` or `5/month`. Raises ConfigError."""
        amount, _, period = text.partition("/")
        try:
            usd = float(amount)
        except ValueError:
            usd = -1.0
        if not 0 <= usd < float("inf") or (period or "total") not in PERIODS:
            raise ConfigError(f"{text!r} is no budget: give US dollars, such as 5, 5/day or 100/month")
        return cls(usd, period or "total")

    def since(self, now: float) -> float:
        """Unix seconds at which the period of `now` began."""
        moment = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period == "day":
            return moment.timestamp()
        return moment.replace(day=1).timestamp() if self.period == "month" else 0.0


class Budgets:
    """Refuses keys that have spent what they may. What is still under way is not known yet, so it is not counted.

    everyone: the budget of each key; own: other budgets, by the key's hash. spent: gives what each key has spent since
    a time.
    """

    def __init__(
        self,
        everyone: Budget | None = None,
        own: Mapping[str, Budget] | None = None,
        spent: Callable[[float], Mapping[str | None, float]] = lambda _: {},
        now: Callable[[], float] = time.time,
    ) -> None:
        self._everyone = everyone
        self._own = dict(own or {})
        self._now = now
        self._sums = {since: defaultdict(float, spent(since)) for since in self._periods()}

    def exceeded(self, key: str | None) -> str | None:
        """Why a request of this key is refused, or None."""
        budget = self._own.get(key or "", self._everyone)
        if budget is None:
            return None
        self._turn()
        spent = self._sums[budget.since(self._now())][key]
        if spent < budget.usd:
            return None
        period = {"day": " of today (UTC)", "month": " of this month (UTC)"}.get(budget.period, "")
        return f"The budget{period} of this key at the gateway is spent: {spent:.4f} of {budget.usd:.4f} US dollars."

    def charge(self, key: str | None, at: float, usd: float) -> None:
        """A request of that key, begun at `at`, has cost so much."""
        self._turn()
        for since, sums in self._sums.items():
            if at >= since:
                sums[key] += usd

    def _turn(self) -> None:
        """Begin the periods that have begun."""
        if (periods := self._periods()) != self._sums.keys():
            self._sums = {since: self._sums.get(since, defaultdict(float)) for since in periods}

    def _periods(self) -> set[float]:
        now = self._now()
        return {budget.since(now) for budget in (*self._own.values(), self._everyone) if budget is not None}
