"""The parts of a summary that need no model: sections, names, the user's words, files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.conversation.compaction.constraints import constraints
from longturn.conversation.compaction.files import touched
from longturn.conversation.compaction.identifiers import identifiers, invented, vanished
from longturn.conversation.compaction.sections import TITLES, read_sections, write_sections
from longturn.conversation.parts import File, Message, Text, ToolCall, ToolResult

BODY = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"], blacklist_characters="#*"), min_size=1)


@given(st.dictionaries(st.sampled_from(sorted(TITLES)), BODY.map(str.strip).filter(bool)))
def test_sections_are_read_as_they_were_written(bodies) -> None:  # type: ignore[no-untyped-def]
    assert read_sections(write_sections(bodies)) == {name: bodies.get(name, "(none)") for name in TITLES}


def test_headings_of_small_models_are_understood() -> None:
    text = (
        "Here you are:\n**Goal:**\na\n### 2. Instructions & Constraints\nb\n# DISCOVERIES:\nc\n"
        "## Work state\nd\n## Relevant Files ##\n- e\n\n## Something else\nf"
    )
    assert read_sections(text) == {
        "goal": "a",
        "constraints": "b",
        "discoveries": "c",
        "work": "d",
        "files": "- e\n\n## Something else\nf",
    }
    assert read_sections("## Goal\n\n## Discoveries\nx") == {"discoveries": "x"}
    assert read_sections("no headings at all") == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Look at src/a/b.py:12, please.", ["src/a/b.py"]),
        ("README.md and/or 1/2 on 2024/11/30, e.g. input/output", ["README.md"]),
        (
            "see https://x.org/a?b=1). Then /etc/hosts and ~/notes.txt",
            ["https://x.org/a?b=1", "/etc/hosts", "~/notes.txt"],
        ),
        (
            "commit 1a2b3c4d5, issue #482, ABC-12, MAX_LEN, parse_line",
            ["1a2b3c4d5", "#482", "ABC-12", "MAX_LEN", "parse_line"],
        ),
        ("`make test` on v1.2.3 at 10.0.0.1", ["make test", "v1.2.3", "10.0.0.1"]),
        ("123e4567-e89b-12d3-a456-426614174000", ["123e4567-e89b-12d3-a456-426614174000"]),
        ("nothing here, not even a defaced word or 1234567", []),
        ("src/" + "a/" * 500 + "b.py", []),
    ],
)
def test_identifiers(text: str, names: list[str]) -> None:
    assert identifiers(text) == names


@pytest.mark.parametrize("piece", ["-", "a-", "a/", "a.", "_a", "0af1", "A_", "+a", "~/", "#1", "x y_"])
def test_identifiers_take_no_longer_than_the_text(piece: str) -> None:
    identifiers(piece * (200_000 // len(piece)))  # minutes, if it went back and forth


def test_vanished_and_invented_names() -> None:
    assert vanished(["src/a/b.py", "#482", "MAX_LEN"], "b.py has max_len") == ["#482"]
    known = "we read src/a/b.py at commit 1a2b3c4d5"
    assert invented("b.py, src/a/b.py, 1a2b3c4d5, either/or", known) == []
    assert invented("src/a/c.py and https://x.org/y, 9f8e7d6c5", known) == [
        "src/a/c.py",
        "https://x.org/y",
        "9f8e7d6c5",
    ]


def said(*texts: str) -> dict[int, Message]:
    return {2 * n: Message(f"m{n}", "user", (Text(text),)) for n, text in enumerate(texts)}


MESSAGES = said(
    "Hi there. Fix src/parser.py. Never touch vendor/, not even once!",
    "Thanks. Use tabs here and spaces there.\nThe port is 9000 for all of it.",
    "不要改数据库。其他都可以。",
)


def quoted(pointed: list[str], last: int = 99, room: int = 10_000) -> list[tuple[int, str]]:
    return [(quote.seq, quote.text) for quote in constraints(MESSAGES, last, pointed, room)[0]]


def test_demands_are_found_without_a_model() -> None:
    assert quoted([]) == [(0, "Never touch vendor/, not even once!"), (4, "不要改数据库。")]
    assert quoted([], last=3) == [(0, "Never touch vendor/, not even once!")]


def test_a_model_points_but_does_not_word() -> None:
    pointed = ['- "use tabs here and spaces there"', "* The port is 9000", "- Vendor is off limits", "(none)"]
    assert quoted(pointed) == [
        (0, "Never touch vendor/, not even once!"),
        (2, "Use tabs here and spaces there."),
        (2, "The port is 9000 for all of it."),
        (4, "不要改数据库。"),
    ]


def test_what_the_model_pointed_at_comes_before_what_only_sounds_like_a_demand() -> None:
    assert quoted(["- The port is 9000 for all"], room=38) == [
        (2, "The port is 9000 for all of it."),
        (4, "不要改数据库。"),
    ]
    assert quoted([], room=5) == []
    assert constraints(MESSAGES, 99, ["- The port is 9000 for all"], 38)[1] == 1


def test_synthetic_words_are_not_the_users() -> None:
    message = Message("m", "user", (Text("You must continue.", synthetic=True),))
    assert constraints({0: message}, 9, ["You must continue"], 1000) == ([], 0)


def test_files_come_from_what_tools_did() -> None:
    messages = {
        1: Message("a", "user", (File("plan.pdf", "application/pdf", "0" * 64, 9),)),
        2: Message(
            "b",
            "assistant",
            (ToolCall("c1", "read", '{"path":"src/a.py"}'), ToolCall("c2", "bash", '{"command":"ls"}')),
        ),
        3: Message("c", "tool", (ToolResult("c1", "x", "src/a.py"), ToolResult("c2", "a.py", "/work"))),
        4: Message(
            "d", "assistant", (ToolCall("c3", "edit", '{"file_path":"src/a.py"}'), ToolCall("c4", "x", "{broken"))
        ),
        5: Message("e", "assistant", (ToolCall("c5", "read", '{"path":"later.py"}'),)),
    }
    found = touched(messages, 4)
    assert [(entry.name, entry.last, dict(entry.tools)) for entry in found] == [
        ("src/a.py", 4, {"read": 1, "edit": 1}),
        ("/work", 3, {"bash": 1}),
        ("plan.pdf", 1, {"attached": 1}),
    ]
