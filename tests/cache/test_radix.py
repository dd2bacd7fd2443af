"""The radix tree against a plain list of sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.cache import Run, Runs
from longturn.cache.eviction import Usage
from longturn.cache.pages import chain_keys
from longturn.cache.radix import Node, RadixTree, Tokens, common_prefix
from longturn.errors import CacheCorruption

PAGE = 4
FIRST = b"first"


def array(*tokens: int) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def shared(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def insert(tree: RadixTree[Node], tokens: Tokens) -> None:
    """As a policy does it: split where the sequences part, add the rest. The slot of a token is its position."""
    node, matched = tree.match(tokens)
    if matched < node.end:
        node = tree.split(node, matched - node.depth)
    if matched < len(tokens):
        keys = chain_keys(FIRST, tokens, PAGE)[matched // PAGE :]
        tree.add(node, tokens[matched:], Runs([Run(matched, len(tokens))]), keys, Usage(1))


sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=12)


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    assert common_prefix(array(*a), array(*b)) == shared(a, b)


@given(sequences, st.lists(st.integers(0, 2), max_size=25))
def test_finds_the_longest_prefix(stored: list[list[int]], wanted: list[int]) -> None:
    tree: RadixTree[Node] = RadixTree(PAGE, FIRST)
    for tokens in stored:
        insert(tree, array(*tokens))
        tree.check()
    node, matched = tree.match(array(*wanted))
    assert matched == max((shared(tokens, wanted) for tokens in stored), default=0)
    assert node.depth <= matched <= node.end
    path = node.path()
    tokens = [int(token) for step in path for token in step.tokens]
    assert tokens[:matched] == wanted[:matched]
    # A token lies where its first owner put it, however often nodes were split.
    assert [slot for step in path for run in step.runs for slot in range(*run)] == list(range(node.end))
    # And so do the keys of the pages.
    keys = chain_keys(FIRST, array(*tokens), PAGE)
    assert [key for step in path for key in step.keys] == keys
    for n in range(node.depth, node.end + 1):
        assert tree.key_before(node, n) == [FIRST, *keys][n // PAGE]


@given(sequences, st.lists(st.integers(0, 2), max_size=25), st.sampled_from([2, 3, 4]))
def test_with_a_grain_only_whole_pages_are_found(stored: list[list[int]], wanted: list[int], grain: int) -> None:
    tree = RadixTree(PAGE, FIRST, grain)
    for tokens in stored:
        insert(tree, array(*tokens[: len(tokens) // grain * grain]))
        tree.check()
    node, matched = tree.match(array(*wanted))
    assert matched == max((shared(tokens, wanted) // grain * grain for tokens in stored), default=0)
    assert [int(token) for step in node.path() for token in step.tokens][:matched] == wanted[:matched]


@given(sequences)
def test_removing_all_leaves_leaves_nothing(stored: list[list[int]]) -> None:
    tree: RadixTree[Node] = RadixTree(PAGE, FIRST)
    for tokens in stored:
        insert(tree, array(*tokens))
    distinct = {tuple(tokens[: n + 1]) for tokens in stored for n in range(len(tokens))}
    assert sum(len(node.tokens) for node in tree.nodes()) == len(distinct)
    while leaves := [node for node in tree.nodes() if not node.children]:
        tree.remove(leaves[0])
        tree.check()
    assert not tree.root.children


@given(sequences, st.lists(st.integers(0, 2), max_size=25), st.integers(1, 4))
def test_a_tree_of_whole_grains_finds_whole_grains(stored: list[list[int]], wanted: list[int], grain: int) -> None:
    tree: RadixTree[Node] = RadixTree(1, FIRST, grain)
    for tokens in stored:
        insert(tree, array(*tokens[: len(tokens) // grain * grain]))
        tree.check()
    node, matched = tree.match(array(*wanted))
    assert matched == max((shared(tokens, wanted) // grain * grain for tokens in stored), default=0)
    assert node.depth <= matched <= node.end
    assert [int(token) for step in node.path() for token in step.tokens][:matched] == wanted[:matched]


def test_siblings_differ_within_their_first_grain() -> None:
    tree: RadixTree[Node] = RadixTree(1, FIRST, 2)
    insert(tree, array(1, 2, 3, 4))
    insert(tree, array(1, 3, 3, 4))
    assert len(tree.root.children) == 2
    assert tree.match(array(1, 2, 3, 5))[1] == 2
    assert tree.match(array(1, 4))[1] == 0
    first = tree.match(array(1, 2, 3, 4))[0]
    tree.remove(first)
    tree.check()
    assert tree.match(array(1, 2, 3, 4))[1] == 0
    assert tree.match(array(1, 3, 3, 4))[1] == 4


def test_a_leaf_shorter_than_a_grain_is_known_by_all_its_tokens() -> None:
    tree: RadixTree[Node] = RadixTree(1, FIRST, 3)
    insert(tree, array(1, 2, 3))
    whole = tree.match(array(1, 2, 3))[0]
    short = tree.add(whole, array(4, 5), Runs([Run(8, 10)]), [], Usage(1))
    tree.check()
    assert whole.children[tree.edge(array(4, 5))] is short
    for tokens in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]):
        assert tree.match(array(*tokens)) == (whole, 3)
    insert(tree, array(1, 2, 3, 4, 5, 6))
    tree.check()
    assert tree.match(array(1, 2, 3, 4, 5, 6))[1] == 6
    tree.remove(short)
    assert len(whole.children) == 1
    tree.add(whole, array(7, 8, 9, 10), Runs([Run(8, 12)]), [], Usage(1))
    with pytest.raises(CacheCorruption, match="no multiple of 3"):
        tree.check()


def test_nodes_below_one() -> None:
    tree: RadixTree[Node] = RadixTree(PAGE, FIRST)
    for tokens in ([1, 2, 3], [1, 2, 4], [1, 2, 4, 5, 6], [2]):
        insert(tree, array(*tokens))
    node, matched = tree.match(array(1, 2))
    assert matched == node.end == 2
    assert sorted(below.tokens.tolist() for below in tree.nodes(below=node)) == [[3], [4], [5, 6]]
    assert len(list(tree.nodes())) == 5


def test_a_split_shares_history_and_locks() -> None:
    tree: RadixTree[Node] = RadixTree(PAGE, FIRST)
    insert(tree, array(1, 2, 3, 4, 5))
    node, _ = tree.match(array(1, 2, 3, 4, 5))
    node.locks, node.usage.hits, node.usage.priority = 2, 7, 3
    upper = tree.split(node, 3)
    assert (upper.locks, upper.usage.hits, upper.usage.priority) == (2, 7, 3)
    assert upper.usage is not node.usage
    assert (upper.end, node.depth, node.end) == (3, 3, 5)
    assert len(upper.keys) == 0
    assert len(node.keys) == 1


def test_damage_is_found() -> None:
    def fresh() -> RadixTree[Node]:
        tree: RadixTree[Node] = RadixTree(PAGE, FIRST)
        insert(tree, array(1, 2, 3))
        insert(tree, array(1, 2, 4))
        return tree

    fresh().check()
    for damage in ("depth", "tokens", "runs", "locks", "parent"):
        tree = fresh()
        node, _ = tree.match(array(1, 2, 3))
        match damage:
            case "depth":
                node.depth += 1
            case "tokens":
                node.tokens = array()
            case "runs":
                node.runs = Runs([Run(0, 2)])
            case "locks":
                node.locks = 1
            case "parent":
                node.parent = tree.root
        with pytest.raises((CacheCorruption, IndexError)):
            tree.check()
