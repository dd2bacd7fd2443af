"""What is not asked for: a summary that cannot help, or not again."""

from __future__ import annotations

import pytest

from longturn.conversation.compaction.compact import compact
from longturn.conversation.compaction.guards import check_fixed, summary_tokens, worthwhile
from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.models.contract import answer_of
from longturn.conversation.models.scripted import ScriptedModel
from longturn.conversation.parts import Text
from longturn.conversation.view.fold import fold
from longturn.conversation.window import Window
from longturn.errors import ContextOverflow
from tests.conversation.talk import Talk

WINDOW = Window(20_000, 2_000)


def test_a_fixed_prompt_that_fills_the_window_is_named() -> None:
    items = fold(Talk(system="rule " * 20_000).entries).items
    with pytest.raises(
        ContextOverflow, match=r"system text \(about 23,8\d\d tokens\) and tools \(\d+\) alone fill .* 18,000"
    ):
        check_fixed(items, WINDOW)
    check_fixed(items, Window(32_000, 2_000))


async def test_a_compaction_that_has_not_made_room_is_not_repeated() -> None:
    made = Talk()
    made.user("Begin.")
    for number in range(12):
        made.read(f"{number}.py", "x = 1\n" * 900)
    end = made.seq - 1
    made.user("A very long question. " * 2_500)  # the tail alone nearly fills the window
    need = NeedsSummary(1, end, end + 1, "full")
    view = fold(made.entries)
    assert worthwhile(view.items, need, WINDOW)
    model = ScriptedModel(lambda request, number: [Text("words " * 5_000)], Window(200_000, 2_000))
    done = await compact(view, need, lambda request: answer_of(model, request), WINDOW)
    made.edit(done.edit)
    after = fold(made.entries)
    # However long the model's answer was, the view has shrunk, and what is left is no reason for another try.
    assert after.tokens < view.tokens - summary_tokens(WINDOW)
    assert not worthwhile(after.items, NeedsSummary(end, end, end + 1, "still full"), WINDOW)
    again = NeedsSummary(end, made.seq - 2, made.seq, "still full", opening=end + 1)
    assert not worthwhile(fold(made.entries).items, again, WINDOW)
    # With enough that is new, it is.
    for number in range(5):
        made.read(f"new_{number}.py", "y = 2\n" * 900)
    last = made.seq - 1
    assert worthwhile(fold(made.entries).items, NeedsSummary(end, last, last + 1, "full"), WINDOW)


def test_what_stays_does_not_count() -> None:
    made = Talk()
    made.user("Never do this. " * 2_000)
    made.assistant("Right.")
    items = fold(made.entries).items
    assert worthwhile(items, NeedsSummary(1, 2, 3, "full"), WINDOW)
    assert not worthwhile(items, NeedsSummary(1, 2, 3, "full", keep=(1,)), WINDOW)
    assert not worthwhile(items, NeedsSummary(1, 2, 3, "full", opening=1), WINDOW)
