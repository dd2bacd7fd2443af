"""What a trace holds: how long and how connected its requests are, and how much of them a cache can save at most."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longturn.lab.bounds import infinite, lru_curve, sample
from longturn.lab.trace.form import Trace, TraceRequest
from longturn.lab.trace.reuse import Reuse, reuse
from longturn.lab.trace.sharing import Sharing, SharingTree

LARGEST_PREFIXES = 5
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Spread:
    """How numbers are spread: how many, their sum, mean, smallest, largest, and quantiles by name (p50)."""

    count: int
    total: float
    mean: float
    least: float
    most: float
    quantiles: dict[str, float]

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread | None:
        """Of some numbers [n]; None if there are none."""
        numbers = np.asarray(values, dtype=np.float64)
        if not len(numbers):
            return None
        quantiles = np.quantile(numbers, QUANTILES).tolist()
        return cls(
            count=len(numbers),
            total=float(numbers.sum()),
            mean=float(numbers.mean()),
            least=float(numbers.min()),
            most=float(numbers.max()),
            quantiles={f"p{round(100 * share)}": value for share, value in zip(QUANTILES, quantiles, strict=True)},
        )


@dataclass(frozen=True, slots=True)
class Beginnings:
    """How the later requests of sessions begin, compared with the request before them in the session.

    extend: with all of its whole blocks, and go on; repeat: with the same whole blocks and no more; rewrite: with a
    part of them, as after an edit or a compaction, or when a sub-agent speaks in between; anew: with none of them.
    """

    extend: int
    repeat: int
    rewrite: int
    anew: int


@dataclass(frozen=True, slots=True)
class Description:
    """All lengths in tokens, all times in seconds.

    unit: tokens per block; accesses, unique: blocks of all prompts, and distinct ones; duration: from the first request
    to the last; turns: requests of a session; gaps: between the arrivals of a session's requests; think: as far as the
    trace tells it; beginnings, sharing: None where a sample was taken; reuse: of the accesses that a cache could hit at
    all, the distinct tokens that were used since the same block was used before (so the smallest LRU cache that still
    hits), by quantile; infinite: block hit ratio of a cache that never evicts (serial order, leading runs, output not
    inserted).
    """

    name: str
    unit: int
    requests: int
    sessions: int
    accesses: int
    unique: int
    duration: float
    prompt: Spread | None
    output: Spread | None
    turns: Spread | None
    gaps: Spread | None
    think: Spread | None
    beginnings: Beginnings | None
    sharing: Sharing | None
    reuse: dict[str, int]
    infinite: float
    notes: list[str]


def describe(trace: Trace, *, rate: float | None = None, progress: Callable[[int], None] | None = None) -> Description:
    """Go through a trace once. Memory grows with its requests and distinct blocks.

    rate: follow only this share of the blocks; progress: called with the number of requests done. Raises TraceError and
    ConfigError.
    """
    seen = _Seen(trace, share=rate is None)
    found = reuse(seen, progress=progress) if rate is None else sample(seen, rate, progress=progress)
    times, sessions = np.array(seen.times), np.array(seen.sessions, dtype=np.int64)
    return Description(
        name=trace.name,
        unit=trace.unit,
        requests=len(times),
        sessions=len(seen.numbers),
        accesses=found.accesses,
        unique=found.unique,
        duration=float(times.max() - times.min()) if len(times) else 0.0,
        prompt=Spread.of(seen.prompts),
        output=Spread.of(seen.outputs),
        turns=Spread.of(list(Counter(seen.sessions).values())),
        gaps=Spread.of(_gaps(times, sessions)) if times.any() else None,
        think=Spread.of(seen.thinks),
        beginnings=_beginnings(found, seen) if rate is None else None,
        sharing=seen.tree.summary(LARGEST_PREFIXES) if rate is None else None,
        reuse=_reuse_distances(found),
        infinite=infinite(found),
        notes=list(trace.notes),
    )


class _Seen:
    """The same trace, which counts while it is gone through. A column per request: lengths, times, session numbers."""

    def __init__(self, trace: Trace, *, share: bool) -> None:
        self.name, self.unit, self.notes = trace.name, trace.unit, trace.notes
        self._trace, self._share = trace, share
        self.prompts, self.outputs, self.sessions = array("q"), array("q"), array("q")
        self.times, self.thinks = array("d"), array("d")
        self.numbers: dict[str, int] = {}
        self.tree = SharingTree()

    def __iter__(self) -> Iterator[TraceRequest]:
        for request in self._trace:
            session = self.numbers.setdefault(request.session, len(self.numbers))
            self.prompts.append(request.prompt_tokens)
            self.outputs.append(request.output_tokens)
            self.sessions.append(session)
            self.times.append(request.time)
            if request.think is not None:
                self.thinks.append(request.think)
            if self._share:
                # A block that is not full is another one in the next turn: no place where paths part.
                self.tree.add(request.prompt.ids()[: request.prompt_tokens // self.unit], session, request.salt)
            yield request


def _gaps(times: npt.NDArray[np.float64], sessions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Seconds between neighbouring requests of each session."""
    order = np.lexsort((times, sessions))
    same = np.diff(sessions[order]) == 0
    gaps: npt.NDArray[np.float64] = np.diff(times[order])[same]
    return gaps


def _beginnings(found: Reuse, seen: _Seen) -> Beginnings:
    """What a request has in common with the one before: blocks that nobody touched earlier than that one."""
    counts: Counter[str] = Counter()
    before: dict[int, int] = {}
    for request, runs in enumerate(found.runs()):
        session = seen.sessions[request]
        if (last := before.get(session)) is not None:
            common = sum(blocks for touch, blocks in runs if touch >= last)
            n_last, n_now = seen.prompts[last] // seen.unit, seen.prompts[request] // seen.unit
            if common >= n_last:
                counts["extend" if n_now > n_last else "repeat"] += 1
            else:
                counts["rewrite" if common else "anew"] += 1
        before[session] = request
    return Beginnings(extend=counts["extend"], repeat=counts["repeat"], rewrite=counts["rewrite"], anew=counts["anew"])


def _reuse_distances(found: Reuse) -> dict[str, int]:
    """The curve of LRU read the other way round: the capacity at which a share of all possible hits is reached."""
    curve = lru_curve(found)
    hits = int(curve.hits[-1]) if len(curve.hits) else 0
    if not hits:
        return {}
    blocks = np.interp([share * hits for share in QUANTILES], curve.hits, curve.capacities) / found.rate
    return {
        f"p{round(100 * share)}": round(float(count) * found.unit)
        for share, count in zip(QUANTILES, blocks.tolist(), strict=True)
    }
