"""The recorded policy: what the sessions really did, replayed through the same cache, to check it against the usage
that the provider reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from longturn.conversation.item import Item
from longturn.errors import ConfigError
from longturn.lab.context.heads import fixed_items, head
from longturn.lab.context.providers import Provider
from longturn.lab.context.rates import Fitted, fit
from longturn.lab.context.serving import Serving
from longturn.lab.context.sessions import Call, Recorded

INPUT_LIMIT, CACHED_LIMIT = 0.03, 0.05
"""How far total input and cached tokens may be off for figures of a replay to be believed."""


@dataclass(frozen=True, slots=True)
class Check:
    """Sums over the sessions that were held out of the fit: reported, and as replayed, in tokens.

    worst, worst_error: the session whose total input is furthest off, and by how much of it.
    """

    sessions: int
    calls: int
    reported_input: int
    replayed_input: int
    reported_cached: int
    replayed_cached: int
    worst: str
    worst_error: float

    @property
    def input_error(self) -> float:
        """Relative error of total input."""
        return self.replayed_input / self.reported_input - 1

    @property
    def cached_error(self) -> float:
        """Relative error of cached tokens."""
        return self.replayed_cached / self.reported_cached - 1 if self.reported_cached else 0.0

    @property
    def good(self) -> bool:
        """Whether both are within their limits."""
        return abs(self.input_error) <= INPUT_LIMIT and abs(self.cached_error) <= CACHED_LIMIT

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "sessions": self.sessions,
            "calls": self.calls,
            "reported_input": self.reported_input,
            "replayed_input": self.replayed_input,
            "input_error": self.input_error,
            "reported_cached": self.reported_cached,
            "replayed_cached": self.replayed_cached,
            "cached_error": self.cached_error,
            "good": self.good,
            "worst": self.worst,
            "worst_error": self.worst_error,
        }


def cross_check(sessions: Sequence[Recorded], progress: Callable[[int, int], None] | None = None) -> list[Check]:
    """Fit to every other session and check on the rest, both ways. Raises ConfigError where that cannot be done."""
    halves = sessions[::2], sessions[1::2]
    if not all(any(call.usage.prompt for session in half for call in session.calls) for half in halves):
        raise ConfigError(
            "the check against recorded usage needs two sessions or more with reported usage: give a longer file, "
            "or leave the check out with --no-check"
        )
    checks = []
    for done, (fitted_to, held_out) in enumerate((halves, halves[::-1])):
        checks.append(check(sessions, fit(fitted_to), held_out))
        if progress:
            progress(done + 1, len(halves))
    return checks


def check(sessions: Sequence[Recorded], fitted: Fitted, held_out: Sequence[Recorded]) -> Check:
    """Replay all sessions as recorded, through Anthropic's cache; compare those that were held out."""
    serving = Serving(Provider("anthropic"), fitted)
    sums = {session.name: [0, 0, 0, 0] for session in held_out}
    compared = 0
    sent = [request for session in sessions for request in requests(session, fitted)]
    for request in sorted(sent, key=lambda request: request.call.time):
        call = request.call
        use = serving.serve(request.session, call.model, request.items, request.head, call.time, call.end)
        if request.session in sums and call.usage.prompt:
            compared += 1
            figures = call.usage.prompt, use.logical, call.usage.cache_read_input_tokens or 0, use.cached_total
            sums[request.session] = [a + b for a, b in zip(sums[request.session], figures, strict=True)]
    errors = {name: replayed / reported - 1 for name, (reported, replayed, _, _) in sums.items() if reported}
    worst = max(errors, key=lambda name: abs(errors[name]))
    reported, replayed, reported_cached, replayed_cached = map(sum, zip(*sums.values(), strict=True))
    return Check(len(held_out), compared, reported, replayed, reported_cached, replayed_cached, worst, errors[worst])


class Request(NamedTuple):
    """What the recording program sent. items: the prompt; head: how many of them are the fixed prefix."""

    session: str
    call: Call
    items: tuple[Item, ...]
    head: int


def requests(session: Recorded, fitted: Fitted) -> Iterator[Request]:
    """The prompts that the recording program sent: all that was said, anew from its summary where it compacted."""
    opening = head(session, fitted)
    items, n_head = [*opening.fixed, *opening.older], len(opening.fixed)
    for number, call in enumerate(session.calls):
        if call.compacted:
            fixed = fixed_items(f"{session.name} {number}", call.model, fitted.after, fitted)
            items, n_head = [*fixed, *fitted.rates.items(call.summary)], len(fixed)
        items += fitted.rates.items(call.before)
        yield Request(session.name, call, tuple(items), n_head)
        items += fitted.rates.items(call.answer)
