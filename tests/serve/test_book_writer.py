"""Lines reach the book, and a book that fails harms nobody."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from longturn.engine import EngineService
from longturn.errors import LedgerError
from longturn.ledger import RequestLine, TokenUse
from longturn.ledger.book import Book
from longturn.serve import BookWriter


def line(number: int) -> RequestLine:
    return RequestLine(f"r{number}", "s", "tiny", float(number), TokenUse(logical=1, cached={}, computed=1))


def test_all_lines_are_written_when_the_writer_closes(tmp_path: Path):
    with Book(f"sqlite:///{tmp_path}/book.db") as book:
        with BookWriter(book) as writer:
            for number in range(50):
                writer.write(line(number))
        assert [found.request_id for found in book.lines()] == [f"r{number}" for number in range(50)]


def test_a_served_request_is_in_the_book(tmp_path: Path, http: httpx.Client, service: EngineService):
    with Book(f"sqlite:///{tmp_path}/book.db") as book:
        with BookWriter(book) as writer:
            service.on_line(writer.write)
            answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "Hi", "max_tokens": 2}).json()
            http.get("/v1/cache")  # is answered after the engine has handed out the line
        [found] = book.lines()
    assert found.to_dict() == answer["usage"]["longturn"]


class BrokenBook:
    def __init__(self) -> None:
        self.broken, self.kept = True, []

    def append_many(self, lines: list[RequestLine]) -> None:
        if self.broken:
            raise LedgerError("the disk is full")
        self.kept += lines


def test_a_failing_book_is_reported_once(caplog: pytest.LogCaptureFixture):
    book = BrokenBook()
    writer = BookWriter(book)
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            writer._append([line(number)])
    assert caplog.text.count("the disk is full") == 1
    book.broken = False
    writer._append([line(4)])
    assert [found.request_id for found in book.kept] == ["r4"]
