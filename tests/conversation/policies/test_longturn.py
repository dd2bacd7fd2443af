"""The default policy: what it does at birth, when an edit pays, what it keeps, and failures of others it has not."""

from __future__ import annotations

import pytest

from longturn.conversation.edits import Compact, Decision, Dedupe, Externalize, Prune, applied
from longturn.conversation.item import Item
from longturn.conversation.parts import Text
from longturn.conversation.policies.longturn import LongturnOptions, LongturnPolicy
from longturn.conversation.policies.opencode import OpencodePolicy
from longturn.conversation.policies.worth import Dead, Prices, saving
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.conversation.window import Window
from tests.conversation.policies.shapes import Shape, paired
from tests.conversation.talk import Talk

WINDOW = Window(200_000, output=32_000)
SMALL = Window(40_000, output=8_000)


def due(shape: Shape, window: Window = WINDOW, cold: bool = False) -> Decision:
    return LongturnPolicy().due(shape.items, shape.tokens, None, window, cold)


def born(shape: Shape, new: list[Item], window: Window = WINDOW) -> list[object]:
    return list(LongturnPolicy().born(shape.items, new, window))


def result(tokens: int, content: str = "c", tool: str = "bash", resource: str | None = None) -> Item:
    return Item(90, 0, "tool", "result", 0, tokens, tokens, content, tool=tool, call="x", resource=resource)


@pytest.mark.parametrize(
    ("tokens", "tool", "resource", "window", "small"),
    [
        (7_000, "bash", None, WINDOW, False),
        (7_001, "bash", None, WINDOW, True),
        (21_000, "read", "a", WINDOW, False),
        (21_001, "read", "a", WINDOW, True),
        (2_000, "bash", None, SMALL, False),
        (2_001, "bash", None, SMALL, True),
        (30_000, "artifact_read", None, WINDOW, False),
    ],
)
def test_large_results_are_small_at_birth(
    tokens: int, tool: str, resource: str | None, window: Window, small: bool
) -> None:
    new = [result(tokens, tool=tool, resource=resource)]
    edits = born(Shape(), new, window)
    assert bool(edits) == small
    for edit in edits:
        assert isinstance(edit, Externalize)
        assert edit.apply(new)[0].tokens <= tokens / 2


def test_a_reread_of_what_is_still_sent_becomes_a_reference() -> None:
    shape = Shape()
    shape.user()
    shape.step(5_000, content="same")
    first = shape.items[-1]
    assert born(shape, [result(5_000, "same")]) == [Dedupe(90, 0, first.at)]
    assert born(shape, [result(5_000, "changed")]) == []
    assert born(shape, [result(90, "same")]) == []
    shape.items = applied(shape.items, [Prune((first.at,))])
    assert born(shape, [result(5_000, "same")]) == []


def test_the_rule_by_hand() -> None:
    prices = Prices(read=0.1, write=1.25)
    # 10,000 tokens carried by 23 requests have cost 23,000; writing 20,000 again instead of reading them costs as much.
    dead = [Dead(10_000, carried=23, wanted=0.0)]
    assert saving(dead, 20_000, prices, cold=False) == pytest.approx(0, abs=1e-6)
    assert saving(dead, 20_001, prices, cold=False) < 0 < saving(dead, 19_999, prices, cold=False)
    # A cold cache makes it free, and saves the first writing; being wanted again costs one.
    assert saving(dead, 20_000, prices, cold=True) == pytest.approx(23_000 + 11_500)
    assert saving([Dead(100, 1, 1.0)], 0, prices, cold=False) == pytest.approx(100 * (0.1 - 1.25))


def test_edits_wait_until_they_pay_and_then_come_together() -> None:
    shape = Shape().system(30_000)
    shape.user()
    shape.step(30_000)
    decisions = 0
    for _ in range(60):
        shape.step(1_000)
        decision = due(shape)
        if decision.edits:
            decisions += 1
            assert "pay for writing" in decision.reason
            before = shape.tokens
            shape.edit(decision)
            assert before - shape.tokens > 0.05 * WINDOW.usable
    assert 1 <= decisions <= 5


def test_a_cold_cache_makes_edits_free() -> None:
    shape = Shape().system(30_000)
    shape.user()
    shape.step(5_000)
    shape.step(8_000)
    shape.step(1_000)
    assert due(shape) == Decision()
    cold = due(shape, cold=True)
    assert "cold" in cold.reason
    shape.edit(cold)
    assert [item.shape for item in shape.items if item.kind == "result"] == ["placeholder", "whole", "whole"]


def test_reads_stay_until_they_are_superseded() -> None:
    shape = Shape()
    shape.user()
    shape.step(6_000, tool="read", resource="a", content="a1")
    shape.step(6_000, tool="read", resource="b", content="b1")
    shape.step(6_000, tool="read", resource="a", content="a2")
    shape.step(100, tool="read", resource="b", content="unchanged")
    for _ in range(20):
        shape.answer(1_000)
    shape.edit(due(shape, cold=True))
    shapes = {item.content: item.shape for item in shape.items if item.kind == "result"}
    assert shapes == {"a1": "placeholder", "b1": "whole", "a2": "whole", "unchanged": "whole"}


def full(turns: int = 6, window: Window = WINDOW) -> Shape:
    """A view that is nearly full of the user's words, answers and reads, none of which is dead."""
    shape = Shape().system(1_000)
    each = window.usable // turns
    for turn in range(turns):
        shape.user(400)
        shape.step(each // 4, tool="read", resource=f"file {turn}")
        shape.answer(each * 3 // 4 - 400)
    return shape


def test_a_summary_is_the_last_resort_and_its_tail_begins_at_a_user_message() -> None:
    shape = full(turns=12)
    need = due(shape).summary
    assert need is not None
    shape.edit(due(shape))
    messages = [item for item in shape.items if not item.fixed]
    at = next(number for number, item in enumerate(messages) if item.kind == "summary")
    assert messages[at + 1].role == "user"
    assert messages[at + 1].message == need.tail
    # The user's words of all turns are there, and the newest reads that have room.
    assert sum(item.role == "user" and item.kind == "text" for item in messages) == 12
    assert {item.resource for item in messages[:at] if item.kind == "result"} >= {"file 9"}
    assert paired(shape.items)
    assert shape.tokens < 0.6 * WINDOW.usable


def test_old_outputs_go_before_anything_is_summed_up() -> None:
    shape = Shape().system(1_000)
    shape.user()
    for _ in range(14):
        shape.step(6_000)
    for _ in range(10):
        shape.answer(7_600)
    decision = due(shape)
    assert decision.summary is None
    assert decision.edits
    shape.edit(decision)
    assert shape.tokens <= 0.5 * WINDOW.usable


# What opencode's users report, each with opencode's own rules beside it.


def test_no_endless_compaction() -> None:
    """The fixed prompt is larger than the usable window."""
    window = Window(9_000, output=2_000)
    counts = {}
    for policy in (OpencodePolicy(), LongturnPolicy()):
        shape = Shape().system(8_100)
        asked = 0
        for _ in range(10):
            shape.user(20)
            shape.answer(20)
            decision = policy.due(shape.items, shape.tokens, shape.tokens, window)
            asked += decision.summary is not None
            shape.edit(decision)
        counts[policy.name] = asked
    assert counts == {"opencode": 10, "longturn": 0}


def test_a_compaction_that_would_not_help_is_not_repeated() -> None:
    """Nearly all of the window is one message that must stay."""
    shape = Shape().system(1_000)
    for _ in range(4):
        shape.user(100)
        shape.answer(2_000)
    shape.user(29_500)
    asked = 0
    for _ in range(5):
        decision = due(shape, SMALL)
        asked += decision.summary is not None
        shape.edit(decision, summary=300)
        shape.answer(20)
    assert asked == 1


@pytest.mark.parametrize(("policy", "kept"), [(OpencodePolicy(), False), (LongturnPolicy(), True)])
def test_the_users_words_are_not_lost_in_mid_turn(policy: OpencodePolicy | LongturnPolicy, kept: bool) -> None:
    """Overflow in the middle of a turn of tools (Q)."""
    shape = Shape().system(2_000)
    asked = shape.user(60)
    for _ in range(3):
        shape.step(10_000, tool="read", resource=f"f{shape.seq}")
    decision = policy.due(shape.items, shape.tokens, shape.tokens, SMALL)
    assert decision.summary is not None
    shape.edit(decision)
    assert any(item.message == asked and item.role == "user" for item in shape.items) == kept
    assert paired(shape.items)


@pytest.mark.parametrize(("policy", "kept"), [(OpencodePolicy(), False), (LongturnPolicy(), True)])
def test_there_is_always_a_tail(policy: OpencodePolicy | LongturnPolicy, kept: bool) -> None:
    """The newest turn does not fit the budget of the tail, or all of it would (J)."""
    shape = Shape().system(2_000)
    shape.user(100)
    shape.answer(15_000)
    newest = shape.user(16_000)
    decision = policy.due(shape.items, shape.tokens, shape.tokens, SMALL)
    assert decision.summary is not None
    shape.edit(decision)
    assert any(item.at == (newest, 0) for item in shape.items) == kept


def test_a_large_file_is_more_than_two_kilobytes() -> None:
    """A read of 56 kB, and a log beyond all limits: opencode's summary is written from 2,000 characters of each."""
    text = "".join(f"{number}: a line of the file that matters\n" for number in range(1_600))
    assert len(text) > 56_000
    for resource, window in (("a", WINDOW), ("a", SMALL), (None, SMALL)):
        talk = Talk()
        talk.user("Read it")
        call = talk.call("read")[0]
        view = fold(talk.entries)
        seq = talk.result(call, text, resource)
        new = fold(talk.entries).items[len(view.items) :]
        edits = LongturnPolicy().born(view.items, new, window)
        talk.entries.pop()
        talk.result(call, text, resource, born=tuple(edits))
        sent = render(fold(talk.entries)).messages[-1]["content"]
        assert len(sent) > 2_000
        assert sent == text or f"artifact:{new[0].content[:12]}" in sent
        assert (sent == text) == (window is WINDOW)
        assert fold(talk.entries).messages[seq].parts[0].text == text  # type: ignore[union-attr]


def test_no_reminder_moves() -> None:
    """What the program says in mid-conversation stays where it was said."""
    talk, policy = Talk(), LongturnPolicy()
    talk.user("Plan it")
    talk.assistant("Planned.")
    talk.say("user", Text("Build it"), Text("You may write files now.", synthetic=True))
    before = render(fold(talk.entries))
    for number in range(5):
        talk.assistant(f"Built {number}.")
        talk.user(f"More {number}")
        view = fold(talk.entries)
        assert policy.due(view.items, view.tokens, None, WINDOW) == Decision()
        after = render(view)
        assert after.extends(before)
        assert after.data.decode().count("You may write files now.") == 1
        before = after


def test_a_large_fixed_prompt_leaves_little_room_and_that_is_shared_out() -> None:
    """Shares of the whole window would keep more behind a summary than there is room for."""
    window = Window(64_000, output=8_000)
    shape = Shape().system(42_000)
    summaries = 0
    for number in range(60):
        shape.user(30)
        shape.step(500, call=50, tool="read", resource=f"f{number}")
        shape.answer(200)
        decision = due(shape, window)
        summaries += decision.summary is not None
        shape.edit(decision, summary=3_500)
        assert shape.tokens <= window.usable
    # 46,000 tokens through a room of 14,000, of which at most half is kept each time.
    assert 4 <= summaries <= 8


def test_a_long_session_through_a_small_window() -> None:
    """400 requests and 3 million tokens in one turn: never over the window, every pair whole, the request kept."""
    window, policy = Window(32_768, output=4_096), LongturnPolicy(LongturnOptions())
    shape = Shape().system(3_000)
    asked = shape.user(80)
    total = epochs = summaries = 0
    for number in range(400):
        first = len(shape.items)
        shape.step(
            7_500, call=60, tool="read" if number % 3 else "bash", resource=f"f{number % 9}" if number % 3 else None
        )
        total += 7_500
        new = shape.items[first:]
        for edit in policy.born(shape.items[:first], new, window):
            new = edit.apply(new)
        shape.items[first:] = new
        decision = policy.due(shape.items, shape.tokens, None, window)
        epochs += decision != Decision()
        summaries += decision.summary is not None
        shape.edit(decision, summary=600)
        assert shape.tokens <= window.usable
        assert paired(shape.items)
        assert any(item.message == asked for item in shape.items)
    assert total == 3_000_000
    assert summaries <= epochs < 60


def test_decisions_are_pure() -> None:
    shape = full()
    before = list(shape.items)
    assert due(shape) == due(shape)
    assert shape.items == before
    assert isinstance(due(shape), Decision)
    assert Compact.after(due(shape).summary, "s", 1).apply(before) != before  # type: ignore[arg-type]
