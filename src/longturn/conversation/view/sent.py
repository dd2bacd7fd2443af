"""What a request sent, made again from the history and checked against the digest that was kept of it."""

from __future__ import annotations

from longturn.conversation.history import Session
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.errors import HistoryError


def sent(session: Session, number: int) -> bytes:
    """The tools and messages of request `number` of a session, byte for byte, one line of JSON each.

    Raises HistoryError where there is no such request, where it did not carry the view, and where the history no longer
    gives the same bytes.
    """
    request = session.request(number)
    kept = request.sent
    if kept is None:
        raise HistoryError(
            f"nothing is kept of what request {number} of session {session.id} sent "
            f"(it was for: {request.line.purpose}): ask for one that carried the conversation"
        )
    data = render(fold(session.entries(kept.entries))).data
    if not kept.matches(data):
        raise HistoryError(
            f"request {number} of session {session.id} sent other bytes than its history gives now: entries are "
            "damaged, or it was sent by a version of Longturn that renders differently"
        )
    return data + kept.more.encode()
