"""What holds for every history: growth within an epoch, whole pairs, the same bytes anywhere, edits undone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longturn.conversation.edits.contract import Edit
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.view.fold import View, fold
from longturn.conversation.view.render import render
from tests.conversation.view.histories import history

SEEDS = st.integers(0, 2**32 - 1)
SEVERAL = range(12)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
@example(seed=0)
def test_within_an_epoch_what_is_sent_only_grows(seed: int) -> None:
    """Also: an incremental view is the view of all entries, its epochs name their reasons, pairs are whole."""
    entries = history(seed).entries
    view: View | None = None
    before = None
    for entry in entries:
        view = fold([entry], onto=view)
        epoch = view.epoch
        rendered = render(view)
        if before is not None and epoch == before[0]:
            assert rendered.extends(before[1])
            assert rendered.data.startswith(before[1].data)
        elif before is not None:
            assert isinstance(entry, Edited)
            assert (epoch.number, epoch.seq) == (before[0].number + 1, entry.seq)
            assert epoch.reason == entry.reason
        # Tools and system text alone, before anything was asked, are no request.
        before = (epoch, rendered) if any(not item.fixed for item in view.items) else None
        check_pairs(rendered.messages, waiting=len(view.waiting))
        assert [item.kind for item in view.items].index("tools") == 0
        assert view.tokens == sum(item.tokens for item in view.items)
        assert all(item.tokens <= max(item.whole_tokens, 250) for item in view.items)
    assert view is not None
    anew = fold(entries)
    assert anew.items == view.items
    assert render(anew).data == render(view).data
    # All that was said is there, whatever is sent.
    assert anew.messages == {entry.seq: entry.message for entry in entries if isinstance(entry, Said)}


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, which=st.integers(0, 100))
def test_an_undone_edit_never_was(seed: int, which: int) -> None:
    entries = history(seed).entries
    edits = [number for number, entry in enumerate(entries) if isinstance(entry, Edited) and entry.edits]
    if not edits:
        return
    # What came after it was decided on a view that had it; so the history ends with it.
    number = edits[which % len(edits)]
    done = entries[: number + 1]
    undone: list[Entry] = [*done[:-1], dataclasses.replace(done[-1], undone=True)]  # type: ignore[type-var]
    undone.append(Edited(len(undone), (), "undone"))
    without = fold(done[:-1])
    again = fold(undone)
    assert render(again).messages == render(without).messages
    assert again.items == [item for item in again.items if item.kind == "tools"] + [
        item for item in without.items if item.kind != "tools"
    ]
    assert again.epoch.reason == "undone"


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, which=st.integers(0, 100))
def test_any_edit_may_be_undone_later(seed: int, which: int) -> None:
    """What was decided on a view that had it still leads to a view that can be sent."""
    entries: list[Entry] = list(history(seed).entries)
    if edits := [number for number, entry in enumerate(entries) if isinstance(entry, Edited) and entry.edits]:
        number = edits[which % len(edits)]
        entries[number] = dataclasses.replace(entries[number], undone=True)  # type: ignore[type-var]
    view = fold(entries)
    check_pairs(render(view).messages, waiting=len(view.waiting))
    assert all(item.refers_to in view.places for item in view.items if item.shape == "reference")


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_edits_are_pure_and_survive_storage(seed: int) -> None:
    view: View | None = None
    for entry in history(seed).entries:
        if isinstance(entry, Edited) and view is not None:
            for edit in entry.edits:
                items = list(view.items)
                assert edit.apply(items) == stored(edit).apply(tuple(items))
                assert items == view.items
        view = fold([entry], onto=view)


def test_other_processes_send_the_same_bytes() -> None:
    here = [render(fold(history(seed, 60).entries)).digest for seed in SEVERAL]
    program = (
        "from tests.conversation.view.histories import history\n"
        "from longturn.conversation.view.fold import fold\n"
        "from longturn.conversation.view.render import render\n"
        f"for seed in range({len(SEVERAL)}): print(render(fold(history(seed, 60).entries)).digest)"
    )
    for hash_seed in ("1", "4242"):
        there = subprocess.check_output(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[3],
            text=True,
        )
        assert there.split() == here


def stored(edit: Edit) -> Edit:
    return msgspec.json.decode(msgspec.json.encode(edit), type=type(edit))


def check_pairs(messages: list[dict[str, Any]], waiting: int) -> None:
    """Every call is answered before anything else comes, once; only the last ones may still wait."""
    calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in calls
            calls.remove(message["tool_call_id"])
            continue
        assert not calls
        calls = [call["id"] for call in message.get("tool_calls", ())]
    assert len(calls) == waiting
