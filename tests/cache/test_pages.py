"""Keys of pages, and the table of those in host memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.cache.eviction import Recency, order
from longturn.cache.pages import KEY_BYTES, Page, PageTable, chain_keys, first_key
from longturn.cache.radix import Tokens
from longturn.errors import CacheCorruption

PAGE = 4


def array(tokens: list[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def test_first_keys_tell_model_and_salt_apart() -> None:
    keys = {first_key(model, salt) for model in ("", "a", "ab", "1:a") for salt in ("", "b", "ab", ":a", "a1:")}
    assert len(keys) == 4 * 5
    assert {len(key) for key in keys} == {KEY_BYTES}


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(1, 5), st.data())
def test_a_key_names_all_tokens_up_to_its_end(tokens: list[int], size: int, data: st.DataObject) -> None:
    first = first_key("m", "")
    keys = chain_keys(first, array(tokens), size)
    assert len(keys) == len(tokens) // size
    # Continued from any page it is the same chain.
    for i in range(len(keys)):
        assert chain_keys([first, *keys][i], array(tokens[i * size :]), size) == keys[i:]
        assert chain_keys(first, array(tokens), size, i) == keys[:i]
    if keys:
        at = data.draw(st.integers(0, len(keys) * size - 1))
        other = chain_keys(first, array([*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]]), size)
        assert other[: at // size] == keys[: at // size]
        assert not set(other[at // size :]) & set(keys)


class Bench:
    def __init__(self, capacity: int = 10) -> None:
        self.recency = Recency()
        self.table = PageTable(capacity, order("lru"), self.recency)

    def add(self, tokens: list[int]) -> Page:
        """The last page of `tokens`; those before it need not be there."""
        keys = [b"first", *chain_keys(b"first", array(tokens), PAGE)]
        page = Page(
            keys[-1], keys[-2], len(tokens) - PAGE, array(tokens[-PAGE:]), self.recency.fresh(len(tokens) - PAGE, PAGE)
        )
        self.table.add(page)
        self.table.check()
        return page

    def drain(self) -> list[Page]:
        out = []
        while (page := self.table.victims.pop(0.0)) is not None:
            self.table.remove(page)
            self.table.check()
            out.append(page)
        return out


def test_children_go_before_their_parents() -> None:
    bench = Bench()
    pages = [bench.add([*range(1, n * PAGE + 1)]) for n in (1, 2, 3)]
    branch = bench.add([*range(1, 2 * PAGE), 77])
    for page in (*pages, branch):
        bench.recency.touch(page.usage)
        bench.table.settle(page)
    # By recency alone the first page would go first.
    assert bench.drain() == [pages[2], pages[1], branch, pages[0]]


def test_the_child_that_shares_most() -> None:
    bench = Bench()
    one = bench.add([1, 2, 3, 4])
    two = bench.add([1, 2, 9, 9])
    find = bench.table.best_child
    assert find(b"first", array([1, 2, 3, 7])) == (one, 3)
    assert find(b"first", array([1, 2, 9])) == (two, 3)
    assert find(b"first", array([5])) == (None, 0)
    assert find(b"first", array([])) == (None, 0)
    assert find(b"elsewhere", array([1, 2])) == (None, 0)
    two.arriving = True
    bench.table.settle(two)
    assert find(b"first", array([1, 2, 9])) == (one, 2)


def test_what_is_held_is_not_evicted() -> None:
    bench = Bench()
    locked, arriving, free = (bench.add([n] * PAGE) for n in (1, 2, 3))
    bench.table.lock([locked])
    bench.table.lock([locked])
    arriving.arriving = True
    bench.table.settle(arriving)
    assert bench.drain() == [free]
    bench.table.unlock([locked])
    assert bench.drain() == []
    bench.table.unlock([locked])
    assert bench.drain() == [locked]
    arriving.arriving = False
    bench.table.settle(arriving)
    assert bench.drain() == [arriving]
    assert bench.table._children == {}


def test_a_page_that_was_lost_from_the_middle_can_return() -> None:
    bench = Bench()
    pages = [bench.add([*range(n * PAGE)]) for n in (1, 2, 3)]
    bench.table.remove(pages[1])
    bench.table.check()
    assert bench.table.get(pages[2].key) is pages[2]
    back = bench.add([*range(2 * PAGE)])
    assert back.children == {pages[2].key}
    assert bench.table.below(pages[0]) == [back, pages[2]]
    assert bench.drain() == [pages[2], back, pages[0]]
    assert bench.table._children == {}


def test_pages_below() -> None:
    bench = Bench()
    top = bench.add([1, 2, 3, 4])
    children = [bench.add([1, 2, 3, 4, n, 0, 0, 0]) for n in range(3)]
    leaf = bench.add([1, 2, 3, 4, 1, 0, 0, 0, 5, 5, 5, 5])
    bench.add([9] * PAGE)
    assert {page.key for page in bench.table.below(top)} == {page.key for page in (*children, leaf)}
    assert bench.table.below(leaf) == []


def test_damage_is_found() -> None:
    for damage in ("capacity", "child", "queue", "children"):
        bench = Bench()
        page = bench.add([1, 2, 3, 4])
        match damage:
            case "capacity":
                bench.table.capacity = 0
            case "child":
                page.children.add(b"gone")
                bench.table.settle(page)
            case "queue":
                page.locks = 1
            case "children":
                bench.table._children[b"nobody"] = set()
        with pytest.raises(CacheCorruption):
            bench.table.check()
