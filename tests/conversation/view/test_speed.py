"""A long history costs what is new of it."""

from __future__ import annotations

import time

from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from tests.conversation.talk import Talk


def test_ten_thousand_messages() -> None:
    talk = Talk()
    while talk.seq < 10_000:
        talk.user(f"question {talk.seq}")
        talk.read(f"file {talk.seq % 97}", f"{talk.seq} says something\n" * 20)
    view = fold(talk.entries)
    whole = render(view)
    talk.user("And now?")
    began = time.process_time()
    newer = fold(talk.entries[-1:], onto=view)
    rendered = render(newer)
    seconds = time.process_time() - began
    assert len(rendered.messages) >= 10_000
    assert rendered.extends(whole)
    assert seconds < 0.05
