import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longturn.errors import LedgerError
from longturn.ledger import RequestLine, Resources, TokenUse
from longturn.ledger.book import Book, Total


def a_line(number: int, session: str | None = "s", model: str = "m") -> RequestLine:
    use = TokenUse(logical=number + 10, cached={"device": number, "provider": 4}, computed=6, output=2, reasoning=1)
    return RequestLine(
        f"r{number}", session, model, float(number), use, Resources(transfer_bytes={"host-disk": number})
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "book.db"


@pytest.fixture
def book(path: Path) -> Iterator[Book]:
    with Book(f"sqlite:///{path}") as book:
        yield book


def ids(lines: Iterator[RequestLine]) -> list[str]:
    return [line.request_id for line in lines]


def test_lines_come_back_oldest_first_and_over_a_restart(book: Book, path: Path) -> None:
    book.append_many([a_line(3), a_line(1)])
    book.append(a_line(2))
    book.append_many([])
    assert list(book.lines()) == [a_line(1), a_line(2), a_line(3)]
    book.close()
    with Book(f"sqlite:///{path}") as again:
        assert list(again.lines()) == [a_line(1), a_line(2), a_line(3)]


def test_lines_are_filtered(book: Book) -> None:
    book.append_many([a_line(1, "a", "x"), a_line(2, "b", "x"), a_line(3, "a", "y"), a_line(4, None, "y")])
    assert ids(book.lines(session="a")) == ["r1", "r3"]
    assert ids(book.lines(model="y")) == ["r3", "r4"]
    assert ids(book.lines(since=2, until=4)) == ["r2", "r3"]
    assert ids(book.lines(limit=2)) == ["r1", "r2"]
    assert ids(book.lines(session="b", model="y")) == []


def test_totals(book: Book) -> None:
    lines = [a_line(1, "a", "x"), a_line(2, "b", "x"), a_line(3, "a", "y"), a_line(4, None, "y")]
    book.append_many(lines)
    assert book.totals() == [
        Total("a", 2, lines[0].use + lines[2].use),
        Total(None, 1, lines[3].use),
        Total("b", 1, lines[1].use),
    ]
    assert [(total.name, total.requests) for total in book.totals("model")] == [("y", 2), ("x", 2)]
    with pytest.raises(LedgerError, match="session"):
        book.totals("purpose")  # type: ignore[arg-type]


def test_a_batch_is_appended_whole_or_not_at_all(book: Book, path: Path) -> None:
    with sqlite3.connect(path) as raw:
        refuse = "WHEN NEW.request_id = 'r2' BEGIN SELECT RAISE(ABORT, 'no'); END"
        raw.execute(f"CREATE TRIGGER no BEFORE INSERT ON longturn_lines {refuse}")
    with pytest.raises(LedgerError, match="cannot append"):
        book.append_many([a_line(1), a_line(2)])
    assert list(book.lines()) == []


@pytest.mark.parametrize(
    "damage",
    [
        "resources = '{'",
        "resources = '[]'",
        "resources = x'ff'",
        "logical = 1000",
        "computed = 'many'",
        "cached_disk = -1, logical = logical - 1",
        "model = ''",
        "started_at = 'then'",
    ],
)
def test_a_damaged_row_is_named_and_the_rest_loads(book: Book, path: Path, damage: str) -> None:
    book.append_many([a_line(n) for n in (1, 2, 3)])
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE longturn_lines SET {damage} WHERE request_id = 'r2'")
    with pytest.warns(UserWarning, match="row 2 "):
        assert ids(book.lines()) == ["r1", "r3"]


def test_totals_leave_out_rows_that_do_not_add_up(book: Book, path: Path) -> None:
    book.append_many([a_line(n) for n in (1, 2, 3)])
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE longturn_lines SET logical = 1000 WHERE request_id = 'r2'")
    with pytest.warns(UserWarning, match="1 rows"):
        assert book.totals() == [Total("s", 2, a_line(1).use + a_line(3).use)]


def test_refuses_another_database_and_leaves_it_alone(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE recipes (name)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="not a Longturn book: it holds recipes"):
        Book(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_refuses_a_file_that_is_no_database(path: Path) -> None:
    path.write_text("dear diary, " * 100)
    with pytest.raises(LedgerError, match="not a database"):
        Book(f"sqlite:///{path}")


def test_refuses_a_newer_schema(book: Book, path: Path) -> None:
    book.close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE longturn_book SET schema_version = 99")
    with pytest.raises(LedgerError, match="upgrade Longturn"):
        Book(f"sqlite:///{path}")


@pytest.mark.parametrize("url", ["sqlite:////proc/no/book.db", "not a url", "nosuchdb://host/book"])
def test_refuses_a_place_that_cannot_be_used(url: str) -> None:
    with pytest.raises(LedgerError, match="cannot open the book"):
        Book(url)


def test_processes_create_and_append_at_once(path: Path) -> None:
    code = (
        "import sys; from longturn.ledger.book import Book; from longturn.ledger import *\n"
        "book = Book(sys.argv[1])\n"
        "for n in range(20):\n"
        "    use = TokenUse(logical=n, cached={}, computed=n)\n"
        "    book.append(RequestLine(f'{sys.argv[2]}-{n}', sys.argv[2], 'm', float(n), use))\n"
    )
    url = f"sqlite:///{path}"
    children = [subprocess.Popen([sys.executable, "-c", code, url, name]) for name in "abcd"]
    assert [child.wait(60) for child in children] == [0, 0, 0, 0]
    with Book(url) as book:
        assert {total.name: total.requests for total in book.totals()} == dict.fromkeys("abcd", 20)
        assert len(list(book.lines())) == 80


def test_a_book_lets_readers_and_a_writer_overlap(book: Book, path: Path) -> None:
    book.append_many([a_line(n) for n in range(3)])
    reading = book.lines()
    next(reading)
    book.append(a_line(3))
    assert len(list(reading)) == 2
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
