"""The accountant, told frame by frame."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longturn.errors import LedgerError
from longturn.gateway import accountant, frames
from longturn.gateway.account import Bookkeeper
from longturn.gateway.accountant import Accountant
from longturn.gateway.entries import Entries, Entry
from longturn.gateway.frames import Answered, Asked, Charged, Ended, Got, Sent
from longturn.ledger.book import Book

USAGE = {"usage": {"prompt_tokens": 900, "completion_tokens": 5}}


class Office:
    """An accountant with its book. charges: what it has said."""

    def __init__(self, book: Book, entries: Entries) -> None:
        self.book, self.entries = book, entries
        self.charges = io.BytesIO()
        self.accountant = Accountant(Bookkeeper(), book, entries, self.charges)  # type: ignore[arg-type]

    def tell(self, number: int, *bodies: bytes, lost: bool = False) -> None:
        """A whole exchange."""
        self.accountant.hear(Asked(number, 1.8e9, "openai-chat", "http://up", "/v1/chat/completions", "k", None, ""))
        for body in bodies:
            self.accountant.hear(Sent(number, body))
        self.accountant.hear(Answered(number, 200, "application/json", ""))
        self.accountant.hear(Got(number, json.dumps(USAGE).encode()))
        self.accountant.hear(Ended(number, "complete", 9.0, 1.0, 0.0, 1, 1, lost))

    def written(self) -> list[Entry]:
        self.accountant.write()
        return list(self.entries.all())


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    url = f"sqlite:///{tmp_path / 'book.db'}"
    with Book(url) as book, Entries(url) as entries:
        yield Office(book, entries)


def body(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def test_bodies_come_in_pieces_and_between_others(office: Office) -> None:
    told = body("Hello")
    office.accountant.hear(Asked(7, 1.8e9, "openai-chat", "http://up", "/x", None, None, ""))
    office.accountant.hear(Sent(7, told[:9]))
    office.tell(8, body("Other"))
    office.accountant.hear(Sent(7, told[9:]))
    office.accountant.hear(Ended(7, "unreachable", 9.0, None, 0.0, len(told), 0))
    first, second = sorted(office.written(), key=lambda entry: entry.outcome)
    assert (first.outcome, first.segments, first.status) == ("complete", 1, 200)
    assert (second.outcome, second.segments, second.status) == ("unreachable", 1, None)
    assert [line.use.logical for line in office.book.lines()].count(900) == 1
    charged = frames.read(io.BufferedReader(io.BytesIO(office.charges.getvalue())))  # type: ignore[arg-type]
    assert isinstance(charged, Charged)


def test_what_a_killed_gateway_has_left_open_gets_a_line(office: Office) -> None:
    told = body("Hello")
    office.accountant.hear(Asked(7, 1.7e9, "openai-chat", "http://up", "/x", "k", None, ""))
    office.accountant.hear(Sent(7, told))
    office.accountant.hear(Answered(7, 200, "text/event-stream", ""))
    office.accountant.hear(Got(7, b'data: {"choices": []}\n\n'))
    office.tell(8, body("Other"))
    office.accountant.abandoned()
    complete, abandoned = sorted(office.written(), key=lambda entry: entry.outcome, reverse=True)
    assert complete.outcome == "complete"
    assert (abandoned.outcome, abandoned.status, abandoned.key) == ("abandoned", 200, "k")
    assert (abandoned.segments, abandoned.sent_bytes, abandoned.got_bytes) == (1, len(told), 23)
    office.accountant.abandoned()
    assert len(office.written()) == 2


def test_what_began_before_it_did_is_passed_over(office: Office) -> None:
    for frame in (Sent(1, b"{}"), Answered(1, 200, "", ""), Got(1, b"x"), Ended(1, "complete", 1.0, None, 0.0, 0, 0)):
        office.accountant.hear(frame)
    assert office.written() == []


def test_more_than_it_can_hold_is_counted_but_not_explained(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accountant, "HELD", 1000)
    office.tell(1, body("x" * 600), b"y" * 600)
    office.tell(2, body("Hello"))
    office.tell(3, body("Hello"), lost=True)
    large, small, lost = office.written()
    assert (large.segments, small.segments, lost.segments) == (0, 1, 0)
    assert large.trouble == "the request was not kept whole, or is not in its encoding"
    assert lost.trouble == "the accountant fell behind"
    assert [line.use.logical for line in office.book.lines()] == [900] * 3


def test_a_request_that_cannot_be_explained_still_has_its_line(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(prompt: Any) -> None:
        if prompt.segments:
            raise ValueError("a secret in a message")

    shape_of = Bookkeeper.account.__globals__["shape_of"]
    monkeypatch.setitem(Bookkeeper.account.__globals__, "shape_of", lambda prompt: broken(prompt) or shape_of(prompt))
    office.tell(1, body("Hello"))
    (entry,) = office.written()
    assert entry.segments == 0
    assert [line.use.logical for line in office.book.lines()] == [900]
    assert "secret" not in caplog.text


def test_a_book_that_fails_costs_lines_and_nothing_else(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise LedgerError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(office.book, "append_many", full)
        office.tell(1, body("a"))
        office.accountant.write()
        office.tell(2, body("b"))
        office.accountant.write()
    assert caplog.text.count("their lines are lost") == 1
    office.tell(3, body("c"))
    office.accountant.write()
    assert len(list(office.book.lines())) == 1
