"""Recorded conversations with tools, sent request by request through small windows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from longturn.conversation.edits import Compact
from longturn.conversation.entries import Edited, Said
from longturn.conversation.parts import Message, Part, Text, ToolCall, ToolResult
from longturn.conversation.policies.registry import CONTEXT_POLICIES, context_policy
from longturn.conversation.view.fold import View, fold
from longturn.conversation.view.render import Rendered, render
from longturn.conversation.window import Window
from tests.conversation.view.test_properties import check_pairs

RECORDED = Path(__file__).resolve().parents[4] / "shared" / "traces" / "taubench_gpt4o_airline.json.gz"
WINDOW = Window(4_500, output=500)


@pytest.fixture(scope="module")
def talks() -> list[list[dict[str, Any]]]:
    if not RECORDED.exists():
        pytest.skip(f"{RECORDED.name} is not here: put the recorded conversations into {RECORDED.parent}")
    with gzip.open(RECORDED) as file:
        return [recorded["traj"] for recorded in json.load(file)][::8]


@pytest.mark.parametrize("name", CONTEXT_POLICIES)
def test_each_request_extends_the_one_before_or_names_its_epoch(name: str, talks: list[list[dict[str, Any]]]) -> None:
    policy = context_policy(f"{name}:trigger=3500" if name == "clear-tools" else name)
    began = over = requests = 0
    for talk in talks:
        view: View | None = None
        sent: tuple[View, Rendered] | None = None
        reported: int | None = None
        for message in map(neutral, talk):
            seq = 0 if view is None else 1 + max([*view.messages, view.epoch.seq])
            if view is not None and message.role == "assistant":
                decision = policy.due(view.items, view.tokens, reported, WINDOW)
                edits = list(decision.edits)
                if decision.summary is not None:
                    edits.append(Compact.after(decision.summary, "They spoke of a flight. " * 10, 70))
                if edits:
                    view = fold([Edited(seq, tuple(edits), decision.reason)], onto=view)
                    assert view.epoch.reason == decision.reason != ""
                    seq, began = seq + 1, began + 1
                rendered = render(view)
                if sent is not None and sent[0].epoch == view.epoch:
                    assert rendered.data.startswith(sent[1].data)
                check_pairs(rendered.messages, waiting=0)
                sent, reported = (view, rendered), view.tokens
                requests += 1
                over += view.tokens > WINDOW.usable
            alone = fold([Said(seq, message)], onto=view)
            born = policy.born(view.items, alone.items[len(view.items) :], WINDOW) if view else ()
            view = fold([Said(seq, message, tuple(born))], onto=view)
        assert view is not None
        assert len(view.messages) == len(talk)
    assert requests > 200
    if name in ("none", "clear-tools"):
        assert over > 0
    if name == "longturn":
        assert over == 0
    assert (began > 0) == (name != "none")


def neutral(message: dict[str, Any]) -> Message:
    if message["role"] == "tool":
        parts: list[Part] = [ToolResult(message["tool_call_id"], message["content"])]
    else:
        parts = [Text(message["content"])] if message.get("content") else []
        for call in message.get("tool_calls") or ():
            parts.append(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]))
    return Message("m", message["role"], tuple(parts))
