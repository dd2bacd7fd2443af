"""The policies that others have: sliding, clearing of tools, the user's words with a summary."""

from __future__ import annotations

import pytest

from longturn.conversation.edits import Decision
from longturn.conversation.policies.clear_tools import ClearToolsOptions, ClearToolsPolicy
from longturn.conversation.policies.codex import CodexOptions, CodexPolicy
from longturn.conversation.policies.none import NoContextPolicy
from longturn.conversation.policies.registry import context_policy
from longturn.conversation.policies.slide import SlideOptions, SlidePolicy
from longturn.conversation.window import Window
from tests.conversation.policies.shapes import Shape, paired

WINDOW = Window(11_000, output=1_000)


def turns(count: int, tokens: int = 1_000) -> Shape:
    shape = Shape().system(500)
    for _ in range(count):
        shape.user(100)
        shape.step(tokens - 150, call=20)
        shape.answer(30)
    return shape


def test_none_edits_nothing() -> None:
    shape = turns(30)
    assert NoContextPolicy().due(shape.items, shape.tokens, None, WINDOW) == Decision()


def test_slide_drops_whole_turns_in_blocks() -> None:
    shape = turns(9)
    assert SlidePolicy().due(shape.items, 10_000, None, WINDOW) == Decision()
    slides = 0
    for _ in range(40):
        decision = SlidePolicy().due(shape.items, shape.tokens, None, WINDOW)
        slides += decision != Decision()
        shape.edit(decision)
        assert shape.tokens <= WINDOW.usable
        assert paired(shape.items)
        if decision.edits:
            assert shape.items[0].kind == "system"
            assert 3_500 < shape.tokens <= 5_000
        more = turns(1)
        for item in more.items[1:]:
            shape.add(item.role, item.kind, item.tokens, item.part, tool=item.tool, call=f"{shape.seq // 2}")
    assert 5 <= slides <= 10


def test_slide_inside_a_turn_keeps_its_question() -> None:
    shape = Shape().system(500)
    asked = shape.user(100)
    for _ in range(12):
        shape.step(900, call=20)
    shape.edit(SlidePolicy().due(shape.items, shape.tokens, None, WINDOW))
    assert [item.kind for item in shape.items[:3]] == ["system", "text", "call"]
    assert shape.items[1].message == asked
    assert paired(shape.items)
    assert shape.tokens <= 5_000 + 100


def test_slide_scales_what_was_estimated_to_what_is_expected() -> None:
    shape = turns(6)
    assert SlidePolicy().due(shape.items, shape.tokens, None, WINDOW) == Decision()
    shape.edit(SlidePolicy(SlideOptions(left=0.25)).due(shape.items, 2 * shape.tokens, None, WINDOW))
    assert 2 * shape.tokens <= 0.25 * WINDOW.usable


@pytest.mark.parametrize(
    ("options", "expected", "cleared"),
    [
        (ClearToolsOptions(), 100_000, 0),
        (ClearToolsOptions(), 100_001, 3),
        (ClearToolsOptions(keep=0), 100_001, 6),
        (ClearToolsOptions(trigger=50), 51, 3),
        (ClearToolsOptions(exclude_tools="bash+grep"), 100_001, 0),
        (ClearToolsOptions(exclude_tools="grep"), 100_001, 3),
        # Three results of 850 tokens, less three placeholders of 16.
        (ClearToolsOptions(clear_at_least=2_502), 100_001, 3),
        (ClearToolsOptions(clear_at_least=2_503), 100_001, 0),
    ],
)
def test_clear_tools(options: ClearToolsOptions, expected: int, cleared: int) -> None:
    shape = turns(6)
    shape.edit(ClearToolsPolicy(options).due(shape.items, expected, None, Window(200_000)))
    results = [item.shape for item in shape.items if item.kind == "result"]
    assert results == ["placeholder"] * cleared + ["whole"] * (6 - cleared)
    # What is cleared is not cleared again.
    assert ClearToolsPolicy(options).due(shape.items, expected, None, Window(200_000)) == Decision()


def test_codex_keeps_the_users_words_and_the_summary() -> None:
    shape = turns(5)
    assert CodexPolicy().due(shape.items, 9_899, None, WINDOW) == Decision()
    shape.edit(CodexPolicy().due(shape.items, 9_900, None, WINDOW))
    assert [(item.role, item.kind) for item in shape.items[1:]] == [("user", "text")] * 5 + [("user", "summary")]
    shape.answer(3_000)
    shape.user(100)
    shape.edit(CodexPolicy(CodexOptions(limit=3_000)).due(shape.items, shape.tokens, None, WINDOW))
    # One summary, over the earlier one too; the question that has no answer yet is last.
    kinds = [item.kind for item in shape.items[1:]]
    assert kinds == ["text"] * 5 + ["summary", "text"]
    assert CodexPolicy(CodexOptions(limit=1)).due(shape.items, shape.tokens, None, WINDOW) == Decision()


def test_codex_keeps_the_newest_words_within_its_budget() -> None:
    shape = turns(5)
    decision = CodexPolicy(CodexOptions(user_messages=299)).due(shape.items, 9_900, None, WINDOW)
    users = [item.message for item in shape.items if item.role == "user"]
    assert decision.summary is not None
    assert list(decision.summary.keep) == users[-2:]


def test_options_are_read() -> None:
    policy = context_policy("clear-tools:trigger=5,keep=1,exclude_tools=read+grep")
    assert isinstance(policy, ClearToolsPolicy)
    assert policy.options == ClearToolsOptions(trigger=5, keep=1, exclude_tools="read+grep")
    sliding = context_policy("slide:left=0.3")
    assert isinstance(sliding, SlidePolicy)
    assert sliding.options == SlideOptions(left=0.3)
