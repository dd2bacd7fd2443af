"""Replay recorded sessions under a context policy: the same messages, other views of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median

from longturn.conversation.edits.apply import applied
from longturn.conversation.edits.compact import Compact
from longturn.conversation.edits.contract import ContextPolicy, NeedsSummary
from longturn.conversation.item import Item
from longturn.conversation.view.epochs import only_grew
from longturn.conversation.window import Window
from longturn.lab.context import summaries
from longturn.lab.context.heads import fixed_items, head
from longturn.lab.context.outcome import Outcome
from longturn.lab.context.providers import Provider
from longturn.lab.context.rates import Fitted
from longturn.lab.context.reasoning import as_sent
from longturn.lab.context.regret import Regret
from longturn.lab.context.serving import Serving
from longturn.lab.context.sessions import Call, Piece, Recorded
from longturn.ledger import TokenUse

RECORDED = "recorded"
"""The name of what the recording program itself did."""
SUMMARY_TOKENS = 3000
"""Of a summary, where the recording has none."""


@dataclass(slots=True)
class _Talk:
    """One session while it is replayed. items: the view, its first `head` the fixed prefix; reported: tokens of the
    latest request with its answer, None at the beginning of an epoch; end: when the latest answer was complete, None
    before the first; model: which wrote it."""

    session: Recorded
    items: list[Item]
    head: int
    reported: int | None = None
    end: float | None = None
    model: str = ""
    regret: Regret = field(default_factory=Regret)


class Replay:
    """Recorded sessions under one policy, or as they were recorded if there is none."""

    def __init__(
        self,
        sessions: Sequence[Recorded],
        fitted: Fitted,
        policy: ContextPolicy | None,
        provider: Provider,
        window: Window,
    ) -> None:
        self._sessions = sessions
        self._fitted = fitted
        self._policy = policy
        self._provider = provider
        self._window = window
        self._serving = Serving(provider, fitted)
        self._summary_tokens = summary_tokens(sessions, fitted)
        self.outcome = Outcome(policy.name if policy else RECORDED)

    def run(self, progress: Callable[[int], None] | None = None) -> Outcome:
        """Serve all calls in the order of their times. progress: called with how many are done."""
        talks = [self._talk(session) for session in self._sessions]
        order = sorted(
            (call.time, which, number)
            for which, session in enumerate(self._sessions)
            for number, call in enumerate(session.calls)
        )
        for done, (_, which, number) in enumerate(order, start=1):
            self._serve(talks[which], self._sessions[which].calls[number], number)
            if progress:
                progress(done)
        for talk in talks:
            self.outcome.regret_content += talk.regret.content
            self.outcome.regret_file += talk.regret.file
            self.outcome.blind_edits += talk.regret.blind
        return self.outcome

    def _talk(self, session: Recorded) -> _Talk:
        opening = head(session, self._fitted)
        return _Talk(session, [*opening.fixed, *opening.older], len(opening.fixed))

    def _serve(self, talk: _Talk, call: Call, number: int) -> None:
        if self._policy is None:
            self._as_recorded(talk, call, number)
        else:
            for _, message in groupby(call.before, key=lambda piece: piece.message):
                self._said(talk, list(message), self._policy)
            self._decide(talk, call, self._policy)
        use = self._ask(talk, call, talk.items, sum(map(self._fitted.rates.tokens, call.answer)))
        self.outcome.over += use.logical > self._window.usable
        self.outcome.largest = max(self.outcome.largest, use.logical)
        self._add(talk, call.answer)
        talk.reported, talk.end, talk.model = use.logical + use.output, call.end, call.model

    def _as_recorded(self, talk: _Talk, call: Call, number: int) -> None:
        if call.compacted:
            self._summarise(talk, call, None)
            fixed = fixed_items(f"{talk.session.name} {number}", call.model, self._fitted.after, self._fitted)
            talk.items, talk.head = [*fixed, *self._fitted.rates.items(call.summary)], len(fixed)
            talk.regret.view(talk.items)
            self._began("recorded compaction", 1)
        self._add(talk, call.before)

    def _said(self, talk: _Talk, pieces: Sequence[Piece], policy: ContextPolicy) -> None:
        said = self._fitted.rates.items(pieces)
        edits = policy.born(talk.items, said, self._window)
        new = said
        for edit in edits:
            new = edit.apply(new)
        self.outcome.born += len(edits)
        self.outcome.withheld += sum(item.whole_tokens for item in new if item.shape == "preview")
        self._take(talk, pieces, said, new)

    def _decide(self, talk: _Talk, call: Call, policy: ContextPolicy) -> None:
        expected = sum(item.tokens for item in as_sent(talk.items, call.model))
        decision = policy.due(talk.items, expected, talk.reported, self._window, self._cold(talk, call))
        before = talk.items
        if decision.edits:
            talk.items = applied(talk.items, decision.edits)
        if decision.summary is not None:
            self._summarise(talk, call, decision.summary)
        if decision.edits or decision.summary is not None:
            talk.regret.view(talk.items)
            if not only_grew(before, talk.items):
                self._began(decision.reason, len(decision.edits) + (decision.summary is not None))
                talk.reported = None

    def _cold(self, talk: _Talk, call: Call) -> bool:
        """Whether the client can tell that the provider's cache has lost its view."""
        if talk.end is None:
            return False
        life = self._provider.life(self._provider.model_of(call.model), self._fitted.ttl(talk.end))
        return talk.model != call.model or call.time - talk.end > life

    def _summarise(self, talk: _Talk, call: Call, needed: NeedsSummary | None) -> None:
        asked = summaries.request(self.outcome.policy, needed, talk.items, talk.head, 1 / self._fitted.rates.result)
        n_head = talk.head if asked[0] is talk.items[0] else 0
        self._ask(talk, call, asked, self._summary_tokens, n_head)
        if needed is not None:
            # No two summaries are equal: a view that begins with another one is cached no longer.
            text = f"summary {self.outcome.aside_calls} of {talk.session.name}"
            talk.items = applied(talk.items, (Compact.after(needed, text, self._summary_tokens),))

    def _ask(self, talk: _Talk, call: Call, items: Sequence[Item], output: int, aside: int | None = None) -> TokenUse:
        """Have a request served and paid for. aside: the fixed items of one that asks for a summary."""
        n_head = talk.head if aside is None else aside
        end = call.end if aside is None else call.time
        use = self._serving.serve(talk.session.name, call.model, items, n_head, call.time, end, aside is not None)
        use = replace(use, output=output)
        money = self._provider.price(self._provider.model_of(call.model), use, self._fitted.ttl(call.time))
        self.outcome.spent(use, money, aside is not None)
        return use

    def _add(self, talk: _Talk, pieces: Sequence[Piece]) -> None:
        said = self._fitted.rates.items(pieces)
        self._take(talk, pieces, said, said)

    def _take(self, talk: _Talk, pieces: Sequence[Piece], said: Sequence[Item], new: Sequence[Item]) -> None:
        """`said` happened, and `new` is what is sent of it."""
        for piece, item in zip(pieces, said, strict=True):
            talk.regret.happened(item, piece.lines)
        talk.regret.sent(new)
        talk.items += new

    def _began(self, reason: str, edits: int) -> None:
        self.outcome.epochs += 1
        self.outcome.edits += edits
        self.outcome.reasons[reason] = self.outcome.reasons.get(reason, 0) + 1


def summary_tokens(sessions: Iterable[Recorded], fitted: Fitted) -> int:
    """Tokens of a summary: as recorded, typically."""
    recorded = [
        sum(map(fitted.rates.tokens, call.summary)) for session in sessions for call in session.calls if call.summary
    ]
    return round(median(recorded)) if recorded else SUMMARY_TOKENS
