"""A long history costs what is new of it."""

from __future__ import annotations

from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from tests.conversation.talk import Talk
from tests.pace import fastest


def test_ten_thousand_messages() -> None:
    talk = Talk()
    while talk.seq < 10_000:
        talk.user(f"question {talk.seq}")
        talk.read(f"file {talk.seq % 97}", f"{talk.seq} says something\n" * 20)
    view = fold(talk.entries)
    whole = render(view)
    talk.user("And now?")
    rendered = []
    assert fastest(lambda: rendered.append(render(fold(talk.entries[-1:], onto=view))), times=3) < 0.05
    assert len(rendered[0].messages) >= 10_000
    assert rendered[0].extends(whole)
