"""Context policies side by side on one recording: what each costs, and whether the figures can be believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longturn.conversation.policies.registry import context_policy
from longturn.conversation.window import Window
from longturn.errors import ConfigError
from longturn.lab.context.outcome import Outcome
from longturn.lab.context.providers import Provider
from longturn.lab.context.rates import HOUR, Fitted, fit
from longturn.lab.context.recorded import CACHED_LIMIT, INPUT_LIMIT, Check, cross_check
from longturn.lab.context.replay import RECORDED, Replay, summary_tokens
from longturn.lab.context.sessions import Recorded, read_sessions

LIVES = ("recorded", "5m", "1h")
DEFAULT = "longturn"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. policies: as users write them, `recorded` among them; ttl: one of LIVES."""

    policies: tuple[str, ...]
    provider: Provider
    window: Window
    ttl: str = "recorded"
    check: bool = True

    def __post_init__(self) -> None:
        if self.ttl not in LIVES:
            raise ConfigError(f"no entry lives {self.ttl!r}: choose one of {', '.join(LIVES)}")
        if len(set(self.policies)) < len(self.policies):
            raise ConfigError("a policy is given twice: each once")
        for policy in self.policies:
            if policy != RECORDED:
                context_policy(policy)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer. outcomes: cheapest first; checks: empty where none was made."""

    trace: str
    sessions: int
    calls: int
    question: Question
    fitted: Fitted
    checks: tuple[Check, ...]
    outcomes: tuple[Outcome, ...]
    premises: tuple[str, ...]

    def verdicts(self) -> list[str]:
        """What longturn's policy costs against each other one, plainly, better or not."""
        own = next((one for one in self.outcomes if one.policy == DEFAULT), None)
        if own is None:
            return []
        return [_verdict(own, other) for other in self.outcomes if other is not own]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        question = self.question
        return {
            "trace": self.trace,
            "sessions": self.sessions,
            "calls": self.calls,
            "provider": question.provider.name,
            "model": question.provider.model,
            "ttl": question.ttl,
            "window": {"context": question.window.context, "usable": question.window.usable},
            "checks": [check.to_json() for check in self.checks],
            "fitted": self.fitted.to_json(),
            "policies": [outcome.to_json() for outcome in self.outcomes],
            "verdicts": self.verdicts(),
            "premises": list(self.premises),
        }


def compare(path: Path, question: Question, *, skip_bad: bool = False, progress: Progress | None = None) -> Comparison:
    """Read, check and replay. progress: called with steps done and steps in all.

    Raises TraceError for a file that cannot be read, ConfigError for what cannot be asked of it.
    """
    sessions, notes = read_sessions(path, skip_bad=skip_bad)
    checks = cross_check(sessions) if question.check else []
    fitted = fit(sessions)
    if question.ttl != "recorded":
        fitted = replace(fitted, hour_from=0.0 if question.ttl == "1h" else None)
    calls = sum(len(session.calls) for session in sessions)
    outcomes = []
    for number, name in enumerate(question.policies):
        policy = None if name == RECORDED else context_policy(name)
        run = Replay(sessions, fitted, policy, question.provider, question.window)
        run.outcome.policy = name
        outcomes.append(run.run(_part(progress, number, calls, len(question.policies)) if progress else None))
    outcomes.sort(key=lambda one: (one.money or 0, one.use.computed))
    return Comparison(
        trace=path.name,
        sessions=len(sessions),
        calls=calls,
        question=question,
        fitted=fitted,
        checks=tuple(checks),
        outcomes=tuple(outcomes),
        premises=(*_premises(sessions, fitted, question), *notes),
    )


def _part(progress: Progress, number: int, calls: int, of: int) -> Callable[[int], None]:
    return lambda done: progress(number * calls + done, calls * of)


def _verdict(own: Outcome, other: Outcome) -> str:
    if own.money is not None and other.money is not None:
        difference, of = float(own.money - other.money), float(other.money)
        cost = f"${abs(difference):,.2f} ({abs(difference) / max(of, 1e-9):.1%}) {'less' if difference < 0 else 'more'}"
    else:
        difference, of = own.use.computed - other.use.computed, other.use.computed
        share = abs(difference) / max(of, 1)
        cost = f"{abs(difference):,} computed tokens ({share:.1%}) {'less' if difference < 0 else 'more'}"
    more = own.regret - other.regret
    regret = "equal regret" if not more else f"{abs(more):,} tokens {'less' if more < 0 else 'more'} regret"
    holds = difference < 0 and more <= 0
    return f"longturn costs {cost} than {other.policy}, at {regret}{'' if holds else ': not better on both'}."


def _premises(sessions: Sequence[Recorded], fitted: Fitted, question: Question) -> list[str]:
    rates = fitted.to_json()["rates"]
    per_token = ", ".join(f"{kind} {value}" for kind, value in rates["characters_per_token"].items())
    models = sorted({question.provider.model_of(call.model) for session in sessions for call in session.calls})
    window = question.window
    lives = {
        "recorded": "as the recorded client asked: " + _lives(fitted),
        "5m": "5 minutes",
        "1h": "1 hour",
    }[question.ttl]
    premises = [
        "The sessions go on as recorded, whatever a policy sends: what it leaves out, or never sends whole (withheld), "
        "is taken not to be missed until the recording reads it again (regret, in tokens) or edits that file (blind "
        "edits: tokens of the latest read).",
        f"Fitted to the usage reported by all {fitted.sessions} sessions, for the check to one half: characters per "
        f"token ({per_token}), {rates['tokens_per_part']} more tokens a part; a fixed prefix of {fitted.head:,} tokens "
        f"({fitted.after:,} after a recorded compaction), of which {fitted.static:,} are common to all sessions and "
        f"{fitted.shared:,} kept cached by others.",
        "A session's own fixed prefix is as long as its first reported prompt tells; what a resumed session has beyond "
        "that is older history.",
        f"Window {window.context:,} tokens, usable {window.usable:,}; larger requests are counted and served.",
        "Answers are as long as their recorded text, for the recorded counts are those at the start of the stream.",
        f"A summary has {summary_tokens(sessions, fitted):,} tokens, and its call is paid for; opencode's is a request "
        "of its own, codex's lacks the tools, the others' continue the view.",
        *question.provider.notes(models),
    ]
    if RECORDED in question.policies:
        premises.append(
            "What the recording program put back or cleared unseen is not known: its own regret is at most this much, "
            "and its requests may have been smaller."
        )
    if question.provider.name == "anthropic":
        premises.append(f"Entries live {lives}.")
    if not question.check:
        premises.append("Not checked against the recorded usage.")
    else:
        premises.append(
            f"The recorded policy is replayed for the check; the limits are {INPUT_LIMIT:.0%} of total input and "
            f"{CACHED_LIMIT:.0%} of cached tokens."
        )
    return premises


def _lives(fitted: Fitted) -> str:
    if fitted.hour_from is None:
        return "5 minutes"
    if fitted.hour_from == 0.0:
        return f"{HOUR / 3600:.0f} hour"
    from datetime import UTC, datetime

    return f"5 minutes, and an hour from {datetime.fromtimestamp(fitted.hour_from, UTC):%Y-%m-%d %H:%M} UTC on"
