"""Searching and reading in portions: artifacts by lines, the history by parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longturn.conversation.artifacts import lines
from longturn.conversation.artifacts.lines import matches, portion
from longturn.conversation.artifacts.rank import best, words_of
from longturn.conversation.artifacts.recall import find_passages, passages, read_message
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.parts import Message, Part, Reasoning, Signal, Text, ToolCall, ToolResult, Unknown


def said(seq: int, role: str, *parts: Part) -> Said:
    return Said(seq, Message(f"m{seq}", role, parts))  # type: ignore[arg-type]


HISTORY: list[Entry] = [
    said(0, "user", Text("Fix the parser. Never touch vendor/.")),
    said(1, "assistant", Reasoning("I must look first"), ToolCall("c1", "read", '{"path":"src/parser.py"}')),
    said(2, "tool", ToolResult("c1", "def parse(text):\n    return text.split()\n" * 50, resource="src/parser.py")),
    Edited(3, (), "nothing"),
    said(4, "assistant", Text("The parser splits on spaces."), Signal("pin"), Unknown({"kind": "new"})),
    said(5, "tool", ToolResult("c9", "a result whose call is not here")),
]


def test_words() -> None:
    assert words_of('Where is "Exit Code" of parse()? parse') == ["where", "is", "exit code", "of", "parse"]
    assert words_of("  ?? ") == []


def test_the_rarer_word_and_the_shorter_text_win() -> None:
    texts = ["the cat and the dog", "the zebra", "the the the", "the zebra " + "x " * 500]
    assert best(texts, "the zebra", 10) == [1, 3, 2, 0]
    assert best(texts, "zebra", 1) == [1]
    assert best(texts, "unicorn", 10) == []
    assert best([], "word", 10) == []


@given(st.lists(st.text(max_size=30), max_size=20), st.text(max_size=10))
def test_what_is_found_holds_a_word(texts: list[str], query: str) -> None:
    found = best(texts, query, 1000)
    holds = {index for index, text in enumerate(texts) if any(word in text.casefold() for word in words_of(query))}
    assert set(found) == holds


def test_passages_leave_out_what_is_sent_whole() -> None:
    every = passages(HISTORY)
    assert [passage.at for passage in every] == [(0, 0), (1, 0), (1, 1), (2, 0), (4, 0), (5, 0)]
    assert [passage.what for passage in every][2:4] == ["call of read", "result of read, src/parser.py"]
    assert [passage.at for passage in passages(HISTORY, {(0, 0), (2, 0)})] == [(1, 0), (1, 1), (4, 0), (5, 0)]


def test_found_passages_say_where_to_read_on() -> None:
    answer = find_passages(passages(HISTORY), "vendor", 3)
    assert answer == "message 0 (user): Fix the parser. Never touch vendor/."
    assert find_passages(passages(HISTORY), "nowhere", 3).startswith("[nothing of 6 earlier parts")
    assert find_passages(passages(HISTORY), " ? ", 3) == "[give some words to look for]"


def test_the_excerpt_is_where_the_words_stand_together() -> None:
    text = "port " + "x" * 3000 + " the port is 8443 " + "y" * 3000
    answer = find_passages(passages([said(0, "user", Text(text))]), "port 8443", 1)
    assert "the port is 8443" in answer
    assert len(answer) < 500


def test_a_message_is_read_in_portions() -> None:
    whole = read_message(HISTORY, 1, 1, 100)
    assert whole == (
        '1: [assistant\'s reasoning]\n2: I must look first\n3: [call of read]\n4: {"path":"src/parser.py"}\n[end]'
    )
    assert read_message(HISTORY, 2, 2, 2).endswith("[go on with line=4, 101 lines in all]")
    assert read_message(HISTORY, 99, 1, 100) == "[there is no message 99 with text]"


def test_portions_give_everything_exactly_once() -> None:
    text = "\n".join(["short", "l" * 50_000, "", "m" * 19_999, "end"])
    line, character, seen = 1, 0, ["", "", "", "", ""]
    for _ in range(20):
        *body, last = portion(text, line, 3, character).split("\n")
        assert sum(len(part) for part in body) <= lines.PORTION + 100
        for part in body:
            number, _, content = part.partition(": ")
            seen[int(number) - 1] += content
        if last == "[end]":
            break
        where = dict(word.split("=") for word in last.strip("[]").replace(",", "").split() if "=" in word)
        line, character = int(where["line"]), int(where.get("character", 0))
    assert seen == text.split("\n")
    assert portion(text, 6, 1) == "[there are only 5 lines]"
    assert portion("", 1, 10) == "1: \n[end]"


def test_matching_lines() -> None:
    text = "alpha beta\nBeta then alpha\ngamma\nalpha  beta"
    assert list(matches(text, "Alpha Beta")) == [(1, "alpha beta")]
    assert [number for number, _ in matches(text, "then alpha beta")] == [2]
    assert list(matches(text, "delta")) == []
    assert list(matches(text, "")) == []
    ((number, excerpt),) = matches("x" * 900 + "needle" + "y" * 900, "needle")
    assert (number, "needle" in excerpt, len(excerpt)) == (1, True, 402)
