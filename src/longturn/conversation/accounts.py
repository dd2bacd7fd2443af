"""`Accounts`: every request of a session measured, as a line of the ledger and on both meters."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from longturn.conversation.conversation import Conversation
from longturn.conversation.history import Request
from longturn.conversation.meters import Spent, WindowMeter
from longturn.conversation.models.contract import Answer, Model
from longturn.conversation.view.fold import View, fold
from longturn.errors import LedgerError
from longturn.ledger import NO_USE, RequestLine
from longturn.ledger.prices import priced_name


@dataclass(slots=True)
class Clock:
    """One request in time: unix seconds of its start, milliseconds to its first piece."""

    began: float = field(default_factory=time.time)
    first_ms: float | None = None
    _start: float = field(default_factory=time.monotonic)

    def tick(self) -> None:
        """A piece came."""
        if self.first_ms is None:
            self.first_ms = self.now_ms

    @property
    def now_ms(self) -> float:
        """Milliseconds since the start."""
        return (time.monotonic() - self._start) * 1000


class Accounts:
    """What the requests of a conversation took, earlier processes' included."""

    def __init__(self, conversation: Conversation, model: Model) -> None:
        self.window = WindowMeter(conversation.window)
        self._session = conversation.session
        self._model = model
        self._learn_from(self._session.latest_counted(), conversation.view)

    @cached_property
    def spent(self) -> Spent:
        """The sum so far. Read when first asked for: a long session opens without it."""
        return Spent.of(self._session.lines())

    def line(self, answer: Answer | None, clock: Clock, purpose: str = "turn") -> RequestLine:
        """A request's line, counted as spent: our own server's, or what can be said about an answer of any other.

        answer: None for a request that ended without one, which may have cost something all the same.
        """
        line = RequestLine(
            request_id=(answer.id if answer else None) or uuid.uuid4().hex,
            session=self._session.id,
            model=priced_name(self._model.provider, self._model.name),
            started_at=clock.began,
            use=(answer.use if answer else None) or NO_USE,
            ttft_ms=clock.first_ms,
            total_ms=clock.now_ms,
            finish_reason=answer.finish if answer else None,
            purpose=purpose,
        )
        if ours := ((answer.raw_usage if answer else None) or {}).get("longturn"):
            # One of another version may be unreadable: what is known here is enough.
            with suppress(LedgerError):
                line = replace(RequestLine.from_dict(ours), session=self._session.id, purpose=purpose)
        self.spent.add(line)
        return line

    def _learn_from(self, request: Request | None, view: View) -> None:
        """The latest request of a session that is resumed tells how its provider counts. view: of the session now."""
        if request is None or request.sent is None:
            return
        sent = request.sent
        if view.epoch.seq >= sent.entries:
            view = fold(self._session.entries(sent.entries + 1))  # as it was before the edits since
        count = sum(item.message < sent.entries for item in view.items)
        known = sum(item.message <= sent.entries for item in view.items)
        self.window.learn(view.items[:count], known, view.epoch.number, request.line.use)
