"""Each edit: what is sent after it, and what it refuses."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from longturn.conversation.edits import Compact, Dedupe, Externalize, Extract, NeedsSummary, Prune, Replay, Slide
from longturn.conversation.edits.contract import Edit
from longturn.conversation.edits.prune import ARGUMENTS, PLACEHOLDER
from longturn.conversation.entries import Entry, Said
from longturn.conversation.parts import Reasoning, Text, ToolCall
from longturn.conversation.view.fold import View, fold
from longturn.conversation.view.render import render
from longturn.errors import ConfigError
from tests.conversation.talk import Talk

LONG = "".join(f"line {number} of a long log\n" for number in range(2000))


def sent(view: View) -> list[tuple[str, str]]:
    """Role and words of each message but the system's, calls by the tool's name."""
    messages = render(view).messages
    assert messages[0]["role"] == "system"
    return [(m["role"], m["content"] or ",".join(c["function"]["name"] for c in m["tool_calls"])) for m in messages[1:]]


def two_turns() -> Talk:
    """1 user, 2 call, 3 result, 4 answer, 5 user, 6 call, 7 result, 8 answer."""
    talk = Talk()
    for name in "ab":
        talk.user(f"Read {name}")
        talk.read(name, f"content of {name}")
        talk.assistant(f"It is {name}")
    return talk


def test_slide_keeps_system_text_and_whole_pairs() -> None:
    talk = two_turns()
    talk.edit(Slide(7))
    # The result 7 would be left without its call.
    assert sent(fold(talk.entries)) == [("assistant", "It is b")]


def test_slide_may_keep_the_question_of_the_turn() -> None:
    talk = two_turns()
    talk.edit(Slide(6, keep=(5,)))
    assert [role for role, _ in sent(fold(talk.entries))] == ["user", "assistant", "tool", "assistant"]


def test_externalized_at_birth() -> None:
    talk = Talk()
    talk.user("Read it")
    call = talk.call("read")[0]
    before = fold(talk.entries)
    first = render(before)
    seq = talk.result(call, LONG, "log")
    whole = fold(talk.entries).items[-1]
    edit = Externalize.within(whole, 500)
    talk.entries[-1] = born_with(talk.entries[-1], edit)
    view = fold(talk.entries[-1:], onto=before)
    text = sent(view)[-1][1]
    assert render(view).extends(first)
    assert len(view.epochs) == 1
    head, note, tail = text.partition("[")
    assert head.startswith("line 0 of")
    assert LONG.startswith(head.rstrip("\n"))
    assert text.endswith("line 1999 of a long log\n")
    assert f"artifact:{whole.content[:12]}" in note + tail
    assert edit.tokens == 500 == view.items[-1].tokens
    assert len(text) < 500 * 3.5
    talk.edit(Replay((Extract(seq, 0, LONG.index("line 700 "), LONG.index("line 702 "), 20),)))
    again = fold(talk.entries[-1:], onto=view)
    assert sent(again)[-1][0] == "user"
    assert "line 700 of a long log\nline 701 of a long log\n" in sent(again)[-1][1]
    assert render(again).extends(render(view))
    assert len(again.epochs) == 1


def test_pruned_calls_stay_calls_and_reasoning_goes() -> None:
    talk = Talk()
    talk.user("Write it")
    seq = talk.say("assistant", Reasoning("hm"), ToolCall("c", "write", '{"text": "long"}'))
    talk.result("c", "ok")
    talk.edit(Prune(((seq, 0), (seq, 1))))
    answer = render(fold(talk.entries)).messages[2]
    assert answer["tool_calls"][0]["id"] == "c"
    assert answer["tool_calls"][0]["function"] == {"name": "write", "arguments": ARGUMENTS}
    assert "reasoning" not in answer
    assert isinstance(json.loads(ARGUMENTS), dict)


def test_a_reference_is_whole_again_when_its_target_goes() -> None:
    talk = Talk()
    talk.user("Read a thrice")
    first = talk.read("a", LONG)
    places = []
    for _ in range(2):
        call = talk.call("read")[0]
        places.append((talk.seq, 0))
        talk.result(call, LONG, "a", born=(Dedupe(talk.seq, 0, (first, 0)),))
    view = fold(talk.entries)
    results = [text for role, text in sent(view) if role == "tool"]
    assert results[0] == LONG
    assert "Same content as the result of call call_0 (read on a)" in results[1]
    talk.edit(Prune(((first, 0),)))
    view = fold(talk.entries[-1:], onto=view)
    results = [text for role, text in sent(view) if role == "tool"]
    assert results[:2] == [PLACEHOLDER, LONG]
    assert "call call_1 (read on a)" in results[2]
    assert [item.at for item in view.items if item.shape == "whole" and item.kind == "result"] == places[:1]


def test_compact_links_to_what_it_sums_up() -> None:
    talk = two_turns()
    need = NeedsSummary(first=1, last=4, tail=5, reason="full")
    talk.edit(Compact.after(need, "The user has read a.", 6))
    view = fold(talk.entries)
    assert sent(view)[:2] == [("user", "The user has read a."), ("user", "Read b")]
    assert len(sent(view)) == 5
    summary = view.items[2]
    assert (summary.kind, summary.at, summary.tokens) == ("summary", (4, -1), 6)
    assert view.messages[1].parts == (Text("Read a"),)
    # A later summary stands for the earlier one too, and for what came since.
    talk.edit(Compact(first=1, last=8, text="Both were read.", tokens=5))
    assert sent(fold(talk.entries)) == [("user", "Both were read.")]


def test_compact_with_words_kept_before_and_a_turn_opened_again() -> None:
    talk = two_turns()
    talk.edit(Compact(first=1, last=7, text="Read both.", tokens=3, keep=(1,), opening=5))
    assert sent(fold(talk.entries)) == [
        ("user", "Read a"),
        ("user", "Read both."),
        ("user", "Read b"),
        ("assistant", "It is b"),
    ]


def test_compact_as_an_answer() -> None:
    talk = two_turns()
    talk.edit(Compact(first=1, last=4, text="Read a.", tokens=3, question="What did we do so far?"))
    assert sent(fold(talk.entries))[:3] == [
        ("user", "What did we do so far?"),
        ("assistant", "Read a."),
        ("user", "Read b"),
    ]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Prune(((1, 0),)), "are no result or call or reasoning"),
        (Prune(((77, 0),)), "are no result"),
        (Slide(99), "nothing would be left"),
        (Externalize(3, 0, "ff" * 32, 10, 10), "is not the text of artifact"),
        (Dedupe(1, 0, (0, 0)), "are no result"),
        (Compact(20, 30, "x", 1), "no messages 20 to 30"),
        (Replay((Extract(1, 0, 5, 5, 1),)), "is no range"),
    ],
)
def test_what_is_not_there_is_refused(edit: Edit, says: str) -> None:
    talk = two_turns()
    before = fold(talk.entries)
    talk.edit(edit)
    with pytest.raises(ConfigError, match=says):
        fold(talk.entries[-1:], onto=before)


def test_born_edits_may_only_concern_their_message() -> None:
    talk = two_turns()
    call = talk.call("read")[0]
    talk.result(call, "x", born=(Prune(((3, 0),)),))
    with pytest.raises(ConfigError, match="born with edits that begin an epoch"):
        fold(talk.entries)
    talk.entries[-1] = born_with(talk.entries[-1], Dedupe(talk.seq - 1, 0, (44, 0)))
    with pytest.raises(ConfigError, match="refers to part"):
        fold(talk.entries)


def test_edits_are_data() -> None:
    edits = [Slide(3), Prune(((1, 0),)), Dedupe(1, 0, (0, 0)), Compact(0, 3, "s", 1), Replay((Extract(1, 0, 0, 2, 1),))]
    for edit in [*edits, Externalize(1, 0, "ab", 1, 2)]:
        assert msgspec.json.decode(msgspec.json.encode(edit), type=type(edit)) == edit


def born_with(said: Entry, edit: Edit) -> Said:
    assert isinstance(said, Said)
    return dataclasses.replace(said, born=(edit,))
