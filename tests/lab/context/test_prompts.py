"""Prefixes have the same name exactly when they are the same, however their prompts were made."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longturn.conversation.item import Item
from longturn.lab.context.prompts import Chains, Prompt

CONTENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=8)


def items(contents: list[tuple[str, int]]) -> list[Item]:
    return [
        Item(
            message=n,
            part=0,
            role="user" if n % 2 else "assistant",
            kind="text",
            turn=0,
            tokens=tokens,
            whole_tokens=tokens,
            content=content,
        )
        for n, (content, tokens) in enumerate(contents)
    ]


@given(st.lists(CONTENTS, min_size=2, max_size=6))
def test_names_of_prefixes(talks: list[list[tuple[str, int]]]) -> None:
    chains = Chains()
    latest: Prompt | None = None
    prompts = []
    for talk in talks:
        latest = chains.prompt(items(talk), 0, latest)
        prompts.append(latest)
        assert latest.nodes == chains.prompt(items(talk), 0, None).nodes
        assert latest.tokens == sum(tokens for _, tokens in talk)
    for (one, first), (other, second) in pairwise(zip(talks, prompts, strict=True)):
        for length in range(1, min(len(one), len(other)) + 1):
            assert (first.nodes[length - 1] == second.nodes[length - 1]) == (one[:length] == other[:length])


def test_where_breakpoints_may_stand() -> None:
    talk = items([("a", 1), ("b", 1), ("c", 1), ("d", 1)])
    assert Chains().prompt(talk, 0, None).said_until() == [1, 3]
    assert Chains().prompt(talk[:3], 0, None).said_until() == [1]
    assert Chains().prompt([], 0, None).tokens == 0
