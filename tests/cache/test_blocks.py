"""Keys, index and queue of blocks against plain models of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.cache.blocks import (
    NO_KEYS,
    BlockIndex,
    BlockQueue,
    PrefixKeys,
    block_runs,
    bytes_keys,
    key_bytes,
)
from longturn.cache.slots import Run
from longturn.errors import CacheCorruption


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int64)


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


short = st.lists(st.integers(-2, 2), max_size=12)


@given(st.lists(st.tuples(short, st.sampled_from(["", "a"])), min_size=2, max_size=6), st.integers(1, 4))
def test_keys_are_equal_where_prefixes_and_salts_are(prompts: list[tuple[list[int], str]], size: int) -> None:
    names = PrefixKeys(size)
    known: dict[tuple[tuple[int, ...], str], bytes] = {}
    for prompt, salt in prompts:
        keys = names.extend(NO_KEYS, tokens(*prompt), salt)
        assert keys.shape == (2, len(prompt) // size)
        assert (bytes_keys(key_bytes(keys)) == keys).all()
        for i, key in enumerate(key_bytes(keys)):
            prefix = tuple(prompt[: (i + 1) * size]), salt
            assert known.setdefault(prefix, key) == key
        if len(prompt) % size:
            known.setdefault((tuple(prompt), salt), key_bytes(names.partial(keys, tokens(*prompt), salt))[0])
    assert len(set(known.values())) == len(known)


@given(short, st.integers(1, 3), st.integers(0, 12))
def test_keys_extended_are_those_made_at_once(prompt: list[int], size: int, cut: int) -> None:
    names = PrefixKeys(size)
    whole = names.extend(NO_KEYS, tokens(*prompt), "s")
    first = names.extend(NO_KEYS, tokens(*prompt[:cut]), "s")
    assert (names.extend(first, tokens(*prompt), "s") == whole).all()
    assert (names.extend(whole, tokens(*prompt[:cut]), "s") == first).all()


def test_keys_of_long_prompts_do_not_depend_on_how_far_was_drawn() -> None:
    names = PrefixKeys(16)
    prompt = np.arange(40_000, dtype=np.int32)
    early = names.extend(NO_KEYS, prompt[:100])
    assert (names.extend(NO_KEYS, prompt)[:, :6] == early).all()
    assert (PrefixKeys(16).extend(NO_KEYS, prompt[:100]) != early).any()


class PlainIndex:
    """The same as a dict of lists."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[int]] = {}

    def forget(self, block: int) -> bool:
        return any(block in held and (held.remove(block) is None) for held in self.blocks.values())


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([3, 40]))
def test_index_is_a_dict_of_lists(data: st.DataObject, spread: int) -> None:
    n = 12
    index, plain = BlockIndex(n), PlainIndex()
    # Keys that differ in the high lane only, or in what of the low lane does not choose the chain: chains are long.
    all_keys = np.array([[i % spread * 1024 for i in range(8)], range(8)], dtype=np.uint64)
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            free = [b for b in range(n) if not index.holds[b]]
            names = data.draw(st.lists(st.integers(0, 7), unique=True, max_size=len(free)))
            blocks = data.draw(st.permutations(free))[: len(names)]
            index.add(all_keys[:, names], ids(*blocks))
            for name, block in zip(names, blocks, strict=True):
                plain.blocks.setdefault(name, []).append(block)
        else:
            blocks = data.draw(st.lists(st.integers(0, n - 1), unique=True))
            assert index.forget(ids(*blocks)).tolist() == [b for b in blocks if plain.forget(b)]
        index.check()
        first = [plain.blocks.get(name, [])[:1] or [-1] for name in range(8)]
        assert index.find(all_keys).tolist() == [f[0] for f in first]
        stop = next((i for i, f in enumerate(first) if f[0] < 0), 8)
        assert index.match(all_keys).tolist() == [f[0] for f in first[:stop]]
        found = index.find(all_keys)
        assert (index.still(all_keys, found) == (found >= 0)).all()
        assert not index.still(all_keys, np.roll(found, 1)).any()
        held = [(b, name) for name, blocks in plain.blocks.items() for b in blocks]
        assert index.keys(ids(*(b for b, _ in held))).tolist() == all_keys[:, [name for _, name in held]].tolist()


def test_index_check_finds_a_block_that_is_lost() -> None:
    index = BlockIndex(4)
    index.add(np.array([[1], [1]], dtype=np.uint64), ids(2))
    index.check()
    index.holds[3] = True
    with pytest.raises(CacheCorruption, match="block 3"):
        index.check()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_queue_is_a_list(data: st.DataObject) -> None:
    n = 9
    plain = data.draw(st.permutations(range(n)))[: data.draw(st.integers(0, n))]
    queue = BlockQueue(n, ids(*plain))
    # Enough blocks pass through to close the gaps several times.
    for _ in range(data.draw(st.sampled_from([3, 30, 100]))):
        out = [b for b in range(n) if b not in plain]
        act = data.draw(st.sampled_from(["append", "prepend", "remove", "pop"]))
        if act in ("append", "prepend"):
            blocks = data.draw(st.permutations(out)) if out else []
            getattr(queue, act)(ids(*blocks))
            plain = plain + blocks if act == "append" else blocks + plain
        elif act == "remove":
            blocks = data.draw(st.lists(st.sampled_from(plain), unique=True)) if plain else []
            queue.remove(ids(*blocks))
            plain = [b for b in plain if b not in blocks]
        else:
            k = data.draw(st.integers(0, len(plain)))
            assert queue.pop(k).tolist() == plain[:k]
            plain = plain[k:]
        queue.check()
        assert len(queue) == len(plain)
        assert queue.peek(n).tolist() == plain
        odd = np.arange(n) % 2 == 1
        assert queue.peek(2, but=odd).tolist() == [b for b in plain if b % 2 == 0][:2]
        assert queue.has(np.arange(n)).tolist() == [b in plain for b in range(n)]


def test_queue_check_finds_a_block_that_is_lost() -> None:
    queue = BlockQueue(3, ids(0, 1))
    queue.check()
    queue.remove(ids(2))
    with pytest.raises(CacheCorruption, match="counts 1"):
        queue.check()


def test_neighbouring_blocks_are_one_run() -> None:
    assert list(block_runs(ids(4, 5, 2, 3, 9), 16)) == [Run(64, 96), Run(32, 64), Run(144, 160)]
    assert list(block_runs(ids(), 16)) == []
