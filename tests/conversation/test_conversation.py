"""A conversation over a history that is damaged, and undos that would leave later edits without ground."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from longturn.conversation.artifacts.place import artifacts_of
from longturn.conversation.conversation import Conversation
from longturn.conversation.edits import Compact, Edit
from longturn.conversation.history import History, Session
from longturn.conversation.item import Item
from longturn.conversation.parts import Text
from longturn.conversation.policies.registry import context_policy
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import render
from longturn.conversation.window import Window
from longturn.errors import ConfigError


class NeedsSummary(Edit, tag="needs-summary-for-test", frozen=True):
    """Changes nothing, but refuses a view without a summary."""

    def apply(self, items: Sequence[Item]) -> list[Item]:
        if all(item.kind != "summary" for item in items):
            raise ConfigError("there is no summary")
        return list(items)


def conversation(history: History, session: Session) -> Conversation:
    return Conversation(session, context_policy("none"), Window(8000, 1000), artifacts_of(history))


def test_it_goes_on_behind_rows_that_are_lost(history: History, path: Path) -> None:
    session = history.create()
    talk = conversation(history, session)
    for text in ("one", "two", "three"):
        talk.say("user", Text(text))
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM longturn_entries WHERE seq >= 1")
    with pytest.warns(UserWarning, match="entries 1 to 2 are lost"):
        again = conversation(history, history.session(session.id))
    assert again.say("user", Text("four")).seq == 3
    assert [message["content"] for message in again.rendered.messages] == ["one", "four"]
    with pytest.warns(UserWarning, match="lost"):
        entries = history.session(session.id).entries()
    assert render(fold(entries)).data == again.rendered.data


def test_an_undo_that_later_edits_build_on_changes_nothing(history: History) -> None:
    talk = conversation(history, history.create())
    talk.say("user", Text("one"))
    talk.say("assistant", Text("two"))
    compacted = talk.edit([Compact(0, 1, "in short", 2)], "full")
    talk.edit([NeedsSummary()], "more")
    before = talk.rendered.data, talk.session.log()
    with pytest.raises(ConfigError, match="there is no summary"):
        talk.undo(compacted.seq)
    assert (talk.rendered.data, talk.session.log()) == before
    talk.undo()
    talk.undo(compacted.seq)
    assert [message["content"] for message in talk.rendered.messages] == ["one", "two"]
