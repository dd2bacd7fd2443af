"""`Report`: what the book and the gateway's table say together, by session, model, key and cause of miss."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from longturn.explain import miss
from longturn.explain.table import FIXES
from longturn.gateway.counters import Counted
from longturn.gateway.entries import Entry
from longturn.ledger import NO_USE, RequestLine, TokenUse
from longturn.ledger.prices import price_of

ALL_FIXES: dict[str, str] = {**FIXES, **miss.FIXES}
DRIFTS = 20
"""Requests with drift that are named, the largest."""


@dataclass(slots=True)
class Sum:
    """Requests that have something in common. usd: of those whose price is known; unpriced: how many others there are.
    without_usage: answers that did not say what they took.

    misses, lost_tokens, lost_usd: what causes that can be mended have cost; a compaction on purpose is none.
    """

    name: str | None
    requests: int = 0
    use: TokenUse = NO_USE
    usd: float = 0.0
    unpriced: int = 0
    without_usage: int = 0
    misses: int = 0
    lost_tokens: int = 0
    lost_usd: float = 0.0

    def add(self, line: RequestLine, entry: Entry | None) -> None:
        """One more request."""
        self.requests += 1
        self.use += line.use
        usd = _usd(line, entry)
        self.usd += usd or 0.0
        self.unpriced += usd is None and line.use != NO_USE
        answered = entry is not None and entry.status is not None and entry.status < 400
        self.without_usage += answered and line.use == NO_USE
        if entry is not None and entry.mechanism is not None and not entry.intentional:
            self.misses += 1
            self.lost_tokens += entry.lost_tokens
            self.lost_usd += entry.lost_usd or 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        own = {name: getattr(self, name) for name in self.__slots__}
        return own | {"use": self.use.to_dict()}


@dataclass(slots=True)
class Cause:
    """A mechanism, and what its misses have cost: about what mending it would save in as much time again.

    unpriced: misses whose price is not known and not in lost_usd.
    """

    mechanism: str
    intentional: bool
    fix: str
    misses: int = 0
    sessions: int = 0
    lost_tokens: int = 0
    lost_usd: float = 0.0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Reconciled:
    """An engine's counters beside the ledger's, from the start of the gateway until now; None where it counts nothing.

    trouble: why they cannot be compared.
    """

    upstream: str
    engine: str | None
    since: float | None
    logical: int | None = None
    cached: int | None = None
    ledger_logical: int = 0
    ledger_cached: int = 0
    trouble: str | None = None


@dataclass(slots=True)
class Report:
    """Everything of one book."""

    all: Sum = field(default_factory=lambda: Sum(None))
    sessions: list[Sum] = field(default_factory=list)
    models: list[Sum] = field(default_factory=list)
    keys: list[Sum] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    drifting: int = 0
    drifts: list[Entry] = field(default_factory=list)
    engines: list[Reconciled] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "all": self.all.to_dict(),
            "sessions": [part.to_dict() for part in self.sessions],
            "models": [part.to_dict() for part in self.models],
            "keys": [part.to_dict() for part in self.keys],
            "causes": [asdict(cause) for cause in self.causes],
            "outcomes": self.outcomes,
            "without_usage": self.all.without_usage,
            "drifting": self.drifting,
            "drifts": [asdict(entry) for entry in self.drifts],
            "engines": [asdict(engine) for engine in self.engines],
        }


def report(lines: Iterable[RequestLine], entries: Iterable[Entry]) -> Report:
    """The report over lines of a book and the entries beside them. Lines of other writers have no entry."""
    beside = {entry.request_id: entry for entry in entries}
    found = Report()
    sessions: dict[str | None, Sum] = {}
    models: dict[str | None, Sum] = {}
    keys: dict[str | None, Sum] = {}
    causes: dict[tuple[str, bool], Cause] = {}
    affected: defaultdict[tuple[str, bool], set[str | None]] = defaultdict(set)
    outcomes: Counter[str] = Counter()
    drifts: list[Entry] = []
    for line in lines:
        entry = beside.get(line.request_id)
        found.all.add(line, entry)
        sums = [(sessions, line.session), (models, line.model)]
        if entry is not None:
            sums.append((keys, entry.key))
            outcomes[entry.outcome if entry.status is None or entry.status < 400 else f"http {entry.status}"] += 1
            if entry.mechanism is not None:
                name = (entry.mechanism, entry.intentional)
                _count(causes, name, entry)
                affected[name].add(line.session)
            if entry.drift is not None:
                drifts.append(entry)
        for table, key in sums:
            table.setdefault(key, Sum(key)).add(line, entry)
    for name, cause in causes.items():
        cause.sessions = len(affected[name])
    found.sessions, found.models, found.keys = (_dearest(table) for table in (sessions, models, keys))
    found.causes = sorted(causes.values(), key=lambda cause: (-cause.lost_usd, -cause.lost_tokens))
    found.outcomes = dict(outcomes.most_common())
    found.drifting = len(drifts)
    found.drifts = sorted(drifts, key=lambda entry: -abs(entry.drift or 0))[:DRIFTS]
    return found


def reconciled(
    upstream: str, before: Counted | None, now: Counted | None, lines: Iterable[RequestLine], entries: Iterable[Entry]
) -> Reconciled:
    """An engine's growth beside the ledger's sums of the requests that went to it. lines, entries: since `before`."""
    if now is None:
        return Reconciled(upstream, None, None, trouble="no known engine shows its counters there")
    if before is None:
        return Reconciled(upstream, now.engine, None, trouble="no gateway of this ledger has read it at its start")
    its_own = {entry.request_id for entry in entries if entry.upstream == upstream}
    use = sum((line.use for line in lines if line.request_id in its_own), NO_USE)
    logical, cached = _growth(before.logical, now.logical), _growth(before.cached, now.cached)
    restarted = (logical or 0) < 0 or (cached or 0) < 0
    return Reconciled(
        upstream,
        now.engine,
        before.at,
        None if restarted else logical,
        None if restarted else cached,
        use.logical,
        use.cached_total,
        "the engine was started anew after the gateway" if restarted else None,
    )


def _growth(before: int | None, now: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _count(causes: dict[tuple[str, bool], Cause], name: tuple[str, bool], entry: Entry) -> None:
    mechanism, intentional = name
    fix = "Nothing, if it was meant." if intentional else ALL_FIXES.get(mechanism, "")
    cause = causes.setdefault(name, Cause(mechanism, intentional, fix))
    cause.misses += 1
    cause.lost_tokens += entry.lost_tokens
    cause.lost_usd += entry.lost_usd or 0.0
    cause.unpriced += entry.lost_usd is None


def _dearest(table: Mapping[str | None, Sum]) -> list[Sum]:
    return sorted(table.values(), key=lambda part: (-part.usd, -part.use.logical))


def _usd(line: RequestLine, entry: Entry | None) -> float | None:
    if entry is not None:
        return entry.usd
    usd = price_of(line)
    return None if usd is None else float(usd)
