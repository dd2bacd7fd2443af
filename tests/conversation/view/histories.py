"""Random histories: what may be said in any order, and edits that a policy could make of the view at that point."""

from __future__ import annotations

import random
from collections.abc import Sequence

from longturn.conversation.edits import (
    Compact,
    Dedupe,
    Edit,
    Externalize,
    Extract,
    Prune,
    Replay,
    Slide,
)
from longturn.conversation.item import Item
from longturn.conversation.parts import Reasoning, Text, ToolCall, Tools
from longturn.conversation.policies.steps import steps
from longturn.conversation.view.fold import View, fold
from tests.conversation.talk import Talk, tool

TEXTS = ["", "yes", "Grüße\n" * 40, "x" * 3_000, "".join(f"line {n}\n" for n in range(2_000)), '{"a": [1, 2]}']


def history(seed: int, length: int = 30) -> Talk:
    """A conversation of about `length` entries with edits, the same for the same seed in every process."""
    pick = random.Random(seed)
    talk = Talk(tools=["read", "bash", "write"])
    view = fold(talk.entries)
    while talk.seq < length:
        before = talk.seq
        _go_on(talk, view, pick)
        view = fold(talk.entries[before:], onto=view)
    return talk


def _go_on(talk: Talk, view: View, pick: random.Random) -> None:
    match pick.choice(
        ["user", "user", "answer", "step", "step", "step", "broken", "reminder", "tools", "edit", "edit"]
    ):
        case "user":
            talk.user(pick.choice(TEXTS[1:]))
        case "answer":
            talk.say("assistant", Reasoning("thinking"), Text(pick.choice(TEXTS)))
        case "step":
            _step(talk, view, pick, pick.randint(1, 3))
        case "broken":
            talk.say("assistant", ToolCall(f"lost {talk.seq}", "bash", "{}"))
            talk.user("Go on without it.")
        case "reminder":
            talk.say("system", Text(f"It is day {talk.seq}."))
        case "tools":
            talk.say("system", Tools((tool("grep"), tool(f"t{talk.seq}"))))
        case "edit":
            if edits := _edits(view, pick):
                talk.edit(*edits, reason=f"edit {talk.seq}")


def _step(talk: Talk, view: View, pick: random.Random, calls: int) -> None:
    if pick.random() < 0.7:
        ids = talk.call(*(pick.choice(["read", "bash"]) for _ in range(calls)))
    else:
        # Some models count their calls from 0 in every answer.
        ids = [f"call-{number}" for number in range(calls)]
        talk.say("assistant", *(ToolCall(call, "read", "{}") for call in ids))
    pick.shuffle(ids)
    for call in ids:
        text = pick.choice(TEXTS)
        talk.result(call, text, pick.choice([None, "a", "b"]))
        item = fold(talk.entries).items[-1]
        said = talk.entries.pop()
        born: list[Edit] = []
        twin = next((i for i in view.items if i.content == item.content and i.kind == "result"), None)
        if item.whole_tokens > 300 and pick.random() < 0.5:
            born = [Externalize.within(item, 200)]
        elif twin is not None and twin.shape == "whole" and item.whole_tokens > 100:
            born = [Dedupe(item.message, item.part, twin.at)]
        talk.say("tool", *said.message.parts, born=tuple(born))  # type: ignore[union-attr]


def _edits(view: View, pick: random.Random) -> Sequence[Edit]:
    """One edit that names what is in the view, or none where there is nothing to name."""
    all_steps = steps(view.items)
    results = [item for item in view.items if item.kind == "result" and item.part >= 0]
    cuts = [number for number in range(1, len(all_steps)) if _apart(all_steps, number)]
    match pick.choice(["slide", "prune", "compact", "compact", "replay", "externalize", "nothing"]):
        case "slide" if cuts:
            return [Slide(all_steps[pick.choice(cuts)].message)]
        case "prune" if results:
            return [Prune(tuple(sorted({item.at for item in pick.choices(results, k=3)})))]
        case "compact" if cuts:
            cut = pick.choice(cuts)
            head = all_steps[:cut]
            users = tuple(step.message for step in head if step.user)
            return [
                Compact(
                    first=min(step.message for step in head),
                    last=max(step.last for step in head),
                    text=f"summary {cut}",
                    tokens=5,
                    keep=users[:1],
                    opening=users[-1] if len(users) > 1 else None,
                    question=pick.choice([None, "What was done?"]),
                )
            ]
        case "replay" if results and not view.waiting and (text := _words(view, pick.choice(results))):
            item = pick.choice([item for item in results if _words(view, item) == text])
            return [Replay((Extract(item.message, item.part, 0, min(9, len(text)), 3),))]
        case "externalize" if large := [i for i in results if i.shape == "whole" and i.whole_tokens > 300]:
            return [Externalize.within(pick.choice(large), 150)]
    return []


def _apart(all_steps: Sequence[object], number: int) -> bool:
    before, after = all_steps[:number], all_steps[number:]
    return max(step.last for step in before) < min(step.message for step in after)  # type: ignore[attr-defined]


def _words(view: View, item: Item) -> str:
    return getattr(view.messages[item.message].parts[item.part], "text", "")
