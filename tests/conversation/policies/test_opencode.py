"""opencode's rules, case by case, as its documentation and runs of the real program have them."""

from __future__ import annotations

import pytest

from longturn.conversation.edits import applied
from longturn.conversation.edits.compact import Compact
from longturn.conversation.edits.prune import PLACEHOLDER, Prune
from longturn.conversation.policies.opencode import (
    OpencodeOptions,
    OpencodePolicy,
    overflows,
    percentage,
    prunable,
    tail_budget,
    tail_start,
    usable,
)
from longturn.conversation.policies.steps import steps
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.conversation.window import Window
from tests.conversation.policies.shapes import Shape, paired
from tests.conversation.talk import Talk

BIG = Window(200_000, output=32_000)


@pytest.mark.parametrize(
    ("window", "reserved", "limit"),
    [
        (Window(200_000, output=32_000), None, 168_000),
        # The output counts up to 32,000; a model that declares none counts as if it had that many.
        (Window(200_000, output=64_000), None, 168_000),
        (Window(200_000, output=8_000), None, 192_000),
        (Window(200_000, output=0), None, 168_000),
        # Scenarios B2 and G1: 16,000 and 2,000, where `reserved` has no effect.
        (Window(16_000, output=2_000), None, 14_000),
        (Window(16_000, output=2_000), 5_000, 14_000),
        # G2: with an input limit it has, and the context no longer counts.
        (Window(16_000, output=2_000, input=16_000), 5_000, 11_000),
        (Window(16_000, output=2_000, input=16_000), None, 14_000),
        (Window(400_000, output=128_000, input=272_000), None, 252_000),
        (Window(400_000, output=10_000, input=272_000), None, 262_000),
        (Window(400_000, output=128_000, input=272_000), 0, 272_000),
    ],
)
def test_overflow(window: Window, reserved: int | None, limit: int) -> None:
    options = OpencodeOptions(reserved=reserved)
    assert usable(window, reserved) == limit
    assert overflows(limit, window, options)
    assert not overflows(limit - 1, window, options)
    assert not overflows(limit, window, OpencodeOptions(reserved=reserved, auto=False))


@pytest.mark.parametrize(
    ("window", "kept", "budget"),
    [
        (Window(16_000, output=2_000), None, 3_500),
        (Window(9_000, output=2_000), None, 2_000),
        (Window(40_000, output=8_000), None, 8_000),
        (BIG, None, 15_000),
        (BIG, 1_000, 1_000),
    ],
)
def test_tail_budget(window: Window, kept: int | None, budget: int) -> None:
    assert tail_budget(window, OpencodeOptions(preserve_recent_tokens=kept)) == budget


@pytest.mark.parametrize(
    ("used", "context", "percent"), [(126_000, 200_000, 63), (210_000, 200_000, 105), (1, 200, 1), (0, 9_000, 0)]
)
def test_side_bar(used: int, context: int, percent: int) -> None:
    assert percentage(used, Window(context, output=0)) == percent


def conversation(*turns: list[int]) -> Shape:
    """Turns of a user message and answers, given by their tokens."""
    shape = Shape()
    for first, *answers in turns:
        shape.user(first)
        for tokens in answers:
            shape.answer(tokens)
    return shape


@pytest.mark.parametrize(
    ("turns", "budget", "most", "start"),
    [
        # Whole turns from the end.
        ([[10, 90], [10, 90], [10, 90]], 250, None, 2),
        ([[10, 90], [10, 90], [10, 90]], 250, 1, 4),
        # All of it fits: it would begin at the first message, so there is no tail (J).
        ([[10, 90], [10, 90]], 500, None, None),
        # The first that does not fit is cut inside, after its user message.
        ([[10, 90], [10, 50, 60, 70], [10, 90]], 240, None, 4),
        ([[10, 90], [10, 50, 60, 70]], 135, None, 4),
        # Q: only a lone answer fits, and the user's request is gone.
        ([[10, 500, 40]], 100, None, 2),
        # Nothing of the newest turn fits.
        ([[10, 90], [10, 900]], 100, None, None),
        # One message cannot be cut.
        ([[10, 90], [900]], 100, None, None),
        # A turn that cannot be cut ends the search, with what was found behind it.
        ([[10, 20], [10, 900], [10, 20]], 40, None, 4),
        ([[10, 20]], 100, 0, None),
    ],
)
def test_tail(turns: list[list[int]], budget: int, most: int | None, start: int | None) -> None:
    assert tail_start(steps(conversation(*turns).items), budget, most) == start


def test_a_cut_never_splits_an_answer_from_its_results() -> None:
    shape = Shape()
    shape.user()
    shape.step(2_000)
    second = shape.step(1_000, 800)
    shape.step(900)
    decision = OpencodePolicy().due(shape.items, 0, 14_414, Window(16_000, output=2_000))
    assert decision.summary is not None
    assert decision.summary.tail == second
    shape.edit(decision)
    assert paired(shape.items)


def test_what_is_sent_after_a_compaction() -> None:
    """System and tools, question, summary, tail, newer messages; earlier summaries are part of the next."""
    talk = Talk()
    for number in range(3):
        talk.user(f"question {number}")
        talk.assistant("x" * 4_000)
    policy, window = OpencodePolicy(), Window(9_000, output=2_000)
    for summary in ("first summary", "second summary"):
        view = fold(talk.entries)
        decision = policy.due(view.items, view.tokens, 7_000, window)
        assert decision.summary is not None
        talk.edit(*decision.edits, Compact.after(decision.summary, summary, 10))
        talk.user(f"after the {summary}")
        talk.assistant("x" * 4_000)
    rendered = render(fold(talk.entries))
    assert rendered.tools
    assert [m["content"][:24] for m in rendered.messages] == [
        "You help.",
        "What did we do so far?",
        "second summary",
        "after the first summary",
        "x" * 24,
        "after the second summary",
        "x" * 24,
    ]


def results(*tokens: int) -> Shape:
    """A turn for each result, and two turns without after them."""
    shape = Shape()
    for size in tokens:
        shape.user()
        shape.step(size)
        shape.answer()
    for _ in range(2):
        shape.user()
        shape.answer()
    return shape


@pytest.mark.parametrize(
    ("sizes", "cleared"),
    [
        # 40,000 are protected, and what reaches beyond them is a candidate.
        ([21_000, 40_000], [21_000]),
        ([20_001, 40_000], [20_001]),
        # Candidates must have more than 20,000 together.
        ([20_000, 40_000], []),
        ([19_000, 1_001, 40_000], [1_001, 19_000]),
        # The result that crosses the line is a candidate itself.
        ([30_000, 30_000], [30_000]),
        ([50_000], [50_000]),
        ([40_000], []),
    ],
)
def test_prune(sizes: list[int], cleared: list[int]) -> None:
    assert [item.tokens for item in prunable(results(*sizes).items)] == cleared


def test_prune_protects_two_turns_errors_and_skills() -> None:
    shape = Shape()
    for number in range(4):
        shape.user()
        shape.step(50_000, tool="skill" if number == 0 else "bash", error=number == 1)
    assert prunable(shape.items) == []
    shape.user()
    assert [item.message for item in prunable(shape.items)] == [9 - 1]


def test_prune_stops_at_a_pruned_result_and_at_a_summary() -> None:
    shape = results(30_000, 30_000, 50_000)
    newest = [item for item in shape.items if item.kind == "result"][-1]
    assert [item.tokens for item in prunable(shape.items)] == [50_000, 30_000, 30_000]
    pruned = applied(shape.items, [Prune((newest.at,))])
    assert prunable(pruned) == []
    shape.items = applied(shape.items, [Compact(0, shape.items[2].message, "s", 10)])
    assert [item.tokens for item in prunable(shape.items)] == [50_000, 30_000]


def test_prune_is_off_unless_chosen_and_comes_with_a_turn() -> None:
    shape = results(30_000, 50_000)
    pruning = OpencodePolicy(OpencodeOptions(prune=True))
    assert pruning.due(shape.items, 0, 90_000, BIG).edits == ()
    shape.user()
    assert OpencodePolicy().due(shape.items, 0, 90_000, BIG).edits == ()
    decision = pruning.due(shape.items, 0, 90_000, BIG)
    shape.edit(decision)
    assert [item.shape for item in shape.items if item.kind == "result"] == ["placeholder"] * 2
    assert PLACEHOLDER == "[Old tool result content cleared]"
    # Overflow comes first: it never prunes before a compaction.
    full = results(30_000, 50_000)
    full.user()
    decision = pruning.due(full.items, 0, 168_000, BIG)
    assert decision.edits == ()
    assert decision.summary is not None


def test_it_looks_only_at_what_was_reported() -> None:
    shape = conversation([10, 90_000], [10, 90_000])
    assert OpencodePolicy().due(shape.items, 180_000, None, BIG).summary is None
    assert OpencodePolicy().due(shape.items, 180_000, 167_999, BIG).summary is None
    assert OpencodePolicy().due(shape.items, 180_000, 168_000, BIG).summary is not None
