import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_pages import PAGE, held, key, keys, pages, put

from longturn.errors import StoreError
from longturn.store import HostStore, PageStore

numbers = st.lists(st.integers(0, 9), max_size=8)
steps = st.lists(st.tuples(st.sampled_from(["put", "get", "contains", "delete", "clear"]), numbers), max_size=30)


@given(steps, st.integers(0, 6))
def test_does_what_a_bounded_dict_does(steps: list[tuple[str, list[int]]], frames: int) -> None:
    store: PageStore = HostStore(frames * PAGE + PAGE - 1, PAGE)
    model: set[int] = set()
    for step, batch in steps:
        if step == "put":
            accepted = 0
            for number in batch:
                if number not in model and len(model) == frames:
                    break
                model.add(number)
                accepted += 1
            assert put(store, batch) == accepted
        elif step == "get":
            assert held(store, batch) == [number for number in batch if number in model]
        elif step == "contains":
            absent = [position for position, number in enumerate(batch) if number not in model]
            assert store.contains(keys(batch)) == (absent[0] if absent else len(batch))
        elif step == "delete":
            assert store.delete(keys(batch)) == len(model & set(batch))
            model -= set(batch)
        else:
            assert store.clear() == len(model)
            model.clear()
        stats = store.stats()
        assert (stats.pages, stats.bytes) == (len(model), len(model) * PAGE)
        assert stats.bytes <= stats.capacity_bytes


def test_get_copies_nothing_and_frames_are_neighbours() -> None:
    store = HostStore(8 * PAGE, PAGE)
    put(store, range(8))
    store.delete(keys([5, 2, 3]))
    put(store, [10, 11, 12])
    first, second, third = store.get(keys([10, 11, 12]))
    assert first is not None
    assert second is not None
    assert third is not None
    address = [page.__array_interface__["data"][0] for page in (first, second, third)]
    assert [address[1] - address[0], address[2] - address[1]] == [PAGE, 2 * PAGE]
    assert first.base is not None


def test_counts() -> None:
    store = HostStore(2 * PAGE, PAGE)
    assert put(store, [1, 2, 3]) == 2
    store.get(keys([1, 3]))
    stats = store.stats()
    assert (stats.puts, stats.dropped, stats.hits, stats.misses) == (2, 1, 1, 1)


def test_closed_store_accepts_nothing_and_answers_misses() -> None:
    store = HostStore(2 * PAGE, PAGE)
    put(store, [1])
    store.close()
    store.close()
    assert put(store, [1]) == 0
    assert held(store, [1]) == []


@pytest.mark.parametrize(("capacity", "page_bytes"), [(-1, 64), (64, 0), (2**62, 2**20)])
def test_refuses_sizes_that_cannot_work(capacity: int, page_bytes: int) -> None:
    with pytest.raises(StoreError):
        HostStore(capacity, page_bytes)


def test_refuses_batches_of_the_wrong_shape() -> None:
    store = HostStore(2 * PAGE, PAGE)
    for bad_keys, bad_pages in [
        (keys([1]), pages([1, 2])),
        (keys([1]), pages([1], PAGE // 2)),
        (keys([1]), pages([1]).view(np.int8)),
        ([key(1)[:8]], pages([1])),
    ]:
        with pytest.raises(StoreError):
            store.put(bad_keys, bad_pages)
