"""What holds for any conversation: appending is fine, rewriting is seen where it is, and order is told from content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.explain import explain
from longturn.explain.leaves import leaves
from longturn.explain.verdict import Divergence, common
from tests.explain.build import PROVIDERS, TOOLS, Turn, call, image, request, result, text

words = st.text(min_size=1, max_size=30).filter(str.strip)
users = st.one_of(words.map(text), words.map(result), st.just(image()))
answers = st.one_of(
    words.map(text), st.builds(call, st.just("read"), st.dictionaries(words, st.integers(), max_size=3))
)
turns = st.lists(st.tuples(st.just("user"), users) | st.tuples(st.just("assistant"), answers), min_size=2, max_size=8)
every_provider = pytest.mark.parametrize("provider", PROVIDERS)


@every_provider
@settings(max_examples=25)
@given(history=turns, cut=st.integers(1, 7))
def test_appending_never_diverges(provider: str, history: list[Turn], cut: int) -> None:
    told = explain(request(provider, history[:cut]), request(provider, history), provider)
    assert told.append_only
    assert told.first_divergence is None
    assert told.mechanism in ("none", "image_changed")
    assert told.mechanism == "none" or provider == "anthropic"


@every_provider
@settings(max_examples=25)
@given(history=turns, which=st.integers(0, 7), sentence=words)
def test_a_rewrite_is_found_where_it_is(provider: str, history: list[Turn], which: int, sentence: str) -> None:
    which %= len(history)
    role = history[which][0]
    old, new = text("The house stands on a hill."), text("Rivers run to the sea; " + sentence)
    before = [*history[:which], (role, old), *history[which:]]
    after = [*history[:which], (role, new), *history[which:]]
    told = explain(request(provider, before), request(provider, [*after, ("assistant", text("Yes."))]), provider)
    assert not told.append_only
    assert told.mechanism == "history_rewritten"
    assert told.first_divergence is not None
    assert told.first_divergence.before == old["text"]
    assert told.first_divergence.offset == 0


schemas = st.recursive(
    st.integers() | words,
    lambda inner: st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), inner, min_size=2, max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict))


@every_provider
@settings(max_examples=25)
@given(schema=schemas)
def test_swapped_keys_in_a_schema_are_key_order(provider: str, schema: dict[str, Any]) -> None:
    def asked(schema: Any) -> dict[str, Any]:
        return request(provider, tools=[{**TOOLS[0], "schema": schema}, *TOOLS[1:]])

    told = explain(asked(schema), asked(reverse(schema)), provider)
    assert told.mechanism == "key_order"
    assert told.first_divergence is not None
    assert told.first_divergence.segment == "tools[0]"


@every_provider
@settings(max_examples=25)
@given(order=st.permutations(range(3)))
def test_any_other_order_of_tools_is_told(provider: str, order: list[int]) -> None:
    told = explain(request(provider), request(provider, tools=[TOOLS[i] for i in order]), provider)
    assert told.mechanism == ("none" if order == [0, 1, 2] else "tools_reordered")


json_values = st.recursive(
    st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(a=json_values, b=json_values)
def test_leaves_are_there_exactly_where_values_are_written_otherwise(a: Any, b: Any) -> None:
    assert (list(leaves(a, b, "$")) == []) == (json.dumps(a) == json.dumps(b))
    assert list(leaves(a, a, "$")) == []


@given(before=st.text(), after=st.text())
def test_common_beginning(before: str, after: str) -> None:
    n = common(before, after)
    assert before[:n] == after[:n]
    assert before[n : n + 1] != after[n : n + 1] or n == len(before) == len(after)


def test_a_divergence_shows_both_and_counts_bytes() -> None:
    found = Divergence.between(
        "system[0]", "$.system", "é" * 100 + "12:01" + "x" * 200, "é" * 100 + "12:02" + "x" * 200
    )
    assert found.offset == 204
    assert "12:01x" in found.before
    assert "12:02x" in found.after
    assert len(found.before) == len(found.after) == 80


def reverse(value: Any) -> Any:
    return {key: reverse(item) for key, item in reversed(value.items())} if isinstance(value, dict) else value
