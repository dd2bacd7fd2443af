"""What holds for every policy on every view."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longturn.conversation.edits import ContextPolicy, Decision
from longturn.conversation.policies.registry import CONTEXT_POLICIES, context_policy
from longturn.conversation.window import Window
from tests.conversation.policies.shapes import Shape, paired

OPTIONS = {"clear-tools": ":trigger=3000", "opencode": ":prune=true"}


@pytest.mark.parametrize("name", CONTEXT_POLICIES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=3)
def test_a_life(name: str, seed: int) -> None:
    """Pairs stay whole, decisions can be done and are the same again; of longturn's, the newest words of the user stay,
    and what was done is not asked for again at once."""
    pick = random.Random(seed)
    policy = context_policy(name + OPTIONS.get(name, ""))
    window = Window(pick.choice([6_000, 40_000, 200_000]), output=1_000)
    shape = Shape().system(pick.choice([100, 1_000, 6_500]))
    reported = None
    for _ in range(40):
        if shape.turn < 0 or pick.random() < 0.3:
            shape.user(pick.choice([10, 400]))
        first = len(shape.items)
        grow(shape, pick, window)
        for edit in policy.born(shape.items[:first], shape.items[first:], window):
            shape.items[first:] = edit.apply(shape.items[first:])
        cold = pick.random() < 0.1
        before = shape.tokens
        decision = policy.due(shape.items, before, reported, window, cold)
        assert decision == policy.due(tuple(shape.items), before, reported, window, cold)
        shape.edit(decision, summary=100)
        assert paired(shape.items)
        reported = before if decision == Decision() else None
        if name != "longturn":
            continue
        newest = max(item.message for item in shape.items if item.role == "user" and not item.synthetic)
        assert newest >= shape.first_of_turn
        if decision != Decision():
            assert shape.tokens < before
            settled(policy, shape, window, asked=decision.summary is not None)


def settled(policy: ContextPolicy, shape: Shape, window: Window, asked: bool) -> None:
    """Asked again with nothing new, it comes to rest, and wants no second summary."""
    for _ in range(4):
        again = policy.due(shape.items, shape.tokens, None, window)
        if again == Decision():
            return
        assert not (asked and again.summary is not None)
        asked = asked or again.summary is not None
        shape.edit(again, summary=100)
    raise AssertionError("it never comes to rest")


def grow(shape: Shape, pick: random.Random, window: Window) -> None:
    """An answer, or a step of some tools, with what may be large for the window."""
    sizes = [20, 300, window.usable // 20, window.usable // 6]
    match pick.choice(["answer", "output", "read", "read", "edit", "reasoning"]):
        case "answer":
            shape.answer(pick.choice(sizes))
        case "output":
            shape.step(*(pick.choice(sizes) for _ in range(pick.randint(1, 3))), call=pick.choice([20, 500]))
        case "read":
            name, size = f"f{pick.randint(0, 4)}", pick.choice(sizes)
            shape.step(size, tool="read", resource=name, content=f"{name} {size}")
        case "edit":
            shape.step(50, call=pick.choice(sizes), tool="edit", resource=f"f{pick.randint(0, 4)}")
        case "reasoning":
            shape.add("assistant", "reasoning", pick.choice(sizes))
