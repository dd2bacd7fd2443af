import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_pages import PAGE, held, keys, pages, put

from longturn.errors import StoreError
from longturn.store import DiskStore, HostStore, PageStore, disk
from longturn.store.extent import EXTENSION, TEMPORARY, extent_bytes

LARGE = 2**20

numbers = st.lists(st.integers(0, 12), max_size=10)
operations = st.sampled_from(["put", "get", "contains", "delete", "clear", "flush", "reopen"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore(tmp_path, LARGE, PAGE)
    yield store
    store.close()


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if EXTENSION in path.name)


def hold_writer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keep the writer before its next file until the event is set."""
    go = threading.Event()
    write_extent = disk.write_extent

    def wait_and_write(*args: object) -> object:
        assert go.wait(10)
        return write_extent(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(disk, "write_extent", wait_and_write)
    return go


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(operations, numbers), max_size=20))
def test_does_what_a_dict_does_over_restarts(steps: list[tuple[str, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store: PageStore = DiskStore(directory, LARGE, PAGE)
        model: set[int] = set()
        for step, batch in steps:
            if step == "put":
                assert put(store, batch) == len(batch)
                model |= set(batch)
            elif step == "get":
                assert held(store, batch) == [number for number in batch if number in model]
            elif step == "contains":
                absent = [position for position, number in enumerate(batch) if number not in model]
                assert store.contains(keys(batch)) == (absent[0] if absent else len(batch))
            elif step == "delete":
                assert store.delete(keys(batch)) == len(model & set(batch))
                model -= set(batch)
            elif step == "clear":
                assert store.clear() == len(model)
                model.clear()
            elif step == "flush":
                assert isinstance(store, DiskStore)
                assert store.flush(10)
                assert sum(path.stat().st_size for path in files(Path(directory))) == store.stats().bytes
            else:
                store.close()
                store = DiskStore(directory, LARGE, PAGE)
            assert store.stats().pages == len(model)
        stats = store.stats()
        assert (stats.corrupt, stats.dropped, stats.evicted) == (0, 0, 0)
        store.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(numbers, max_size=15), st.integers(0, 14 * (PAGE + 56)))
def test_never_exceeds_its_capacity(batches: list[list[int]], capacity: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):
            store = DiskStore(directory, capacity, PAGE)
            for batch in batches:
                put(store, batch)
                assert store.flush(10)
                assert sum(path.stat().st_size for path in files(Path(directory))) == store.stats().bytes <= capacity
                assert len(held(store, range(13))) == store.stats().pages
                if batch and capacity >= extent_bytes(1, PAGE):
                    assert store.stats().pages
            store.close()
            capacity //= 2


def test_least_recently_used_extents_go_first_over_restarts(tmp_path: Path) -> None:
    capacity = 4 * extent_bytes(1, PAGE)
    store = DiskStore(tmp_path, capacity, PAGE)
    for number in range(4):
        put(store, [number])
        store.flush()
    put(store, [0])  # touched, not written again
    held(store, [1])
    store.close()
    assert len(files(tmp_path)) == 4

    store = DiskStore(tmp_path, capacity, PAGE)
    order = []
    for number in range(10, 14):
        before = held_now(store, range(4))
        put(store, [number])
        store.flush()
        order += sorted(set(before) - set(held_now(store, range(4))))
    assert order == [2, 3, 0, 1]
    assert store.stats().evicted == 4
    store.close()


def held_now(store: DiskStore, candidates: range) -> list[int]:
    """As `held`, without touching anything."""
    return [number for number in candidates if store.contains(keys([number]))]


def test_a_large_batch_becomes_several_files(store: DiskStore, tmp_path: Path) -> None:
    assert put(store, range(150)) == 150
    assert store.flush(10)
    assert len(files(tmp_path)) == 3
    assert held(store, range(151)) == list(range(150))


def test_files_and_folder_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "cache"
    store = DiskStore(directory, LARGE, PAGE)
    put(store, [1])
    store.close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_queued_pages_are_answered_and_deleted(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_writer(monkeypatch)
    put(store, [1, 2, 3])
    put(store, [4])
    assert not store.flush(0.01)
    assert held(store, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert store.delete(keys([2, 4])) == 2
    put(store, [2])
    assert store.delete(keys([3])) == 1
    assert store.stats().pages == 2
    go.set()
    assert store.flush(10)
    assert held(store, [1, 2, 3, 4]) == [1, 2]
    store.close()
    again = DiskStore(tmp_path, LARGE, PAGE)
    assert held(again, [1, 2, 3, 4]) == [1, 2]
    again.close()


def test_clear_reaches_the_file_that_is_being_written(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_writer(monkeypatch)
    put(store, [1, 2])
    put(store, [3])
    assert store.clear() == 3
    go.set()
    assert store.flush(10)
    assert files(tmp_path) == []
    assert store.stats().bytes == 0


def test_a_full_queue_drops_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path, LARGE, PAGE, max_queue_bytes=4 * PAGE)
    go = hold_writer(monkeypatch)
    assert put(store, [0, 1, 2]) == 3
    assert put(store, [0, 3, 1, 4, 2]) == 3  # 0 and 1 are there, 3 fits, 4 does not
    assert put(store, [5]) == 0
    assert store.stats().dropped == 3
    go.set()
    assert store.flush(10)
    assert put(store, [5]) == 1
    assert held(store, range(6)) == [0, 1, 2, 3, 5]
    store.close()


def test_views_are_copied_and_own_arrays_are_kept(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_writer(monkeypatch)
    host = HostStore(4 * PAGE, PAGE)
    put(host, [1])
    frame = host.get(keys([1]))[0]
    assert frame is not None
    store.put(keys([1]), frame[None])
    own = pages([2, 3]).copy()
    store.put(keys([2, 3]), own)
    host.clear()
    put(host, [9])  # reuses the frame
    with pytest.raises(ValueError, match="read-only"):
        own[0, 0] = 0
    assert held(store, [1, 2, 3]) == [1, 2, 3]
    assert np.shares_memory(own, store.get(keys([2]))[0])
    go.set()
    assert store.flush(10)
    assert held(store, [1, 2, 3]) == [1, 2, 3]


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_disk_that_refuses_costs_pages_only(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    put(store, [1])
    store.flush()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        if when == "write":
            broken.setattr("longturn.store.extent.Extent.header", refuse)
        else:
            broken.setattr(os, "replace", refuse)
        assert put(store, [2, 3]) == 2
        assert store.flush(10)
    assert held(store, [1, 2, 3]) == [1]
    assert store.stats().dropped == 2
    assert [path.suffix for path in files(tmp_path)] == [EXTENSION]
    put(store, [2])
    store.flush()
    assert held(store, [1, 2]) == [1, 2]


def test_a_folder_that_vanishes_costs_pages_only(store: DiskStore, tmp_path: Path) -> None:
    put(store, [1])
    store.flush()
    for path in files(tmp_path):
        path.unlink()
    assert held(store, [1]) == []
    assert (store.stats().pages, store.stats().bytes, store.stats().corrupt) == (0, 0, 1)
    assert put(store, [1]) == 1
    assert held(store, [1]) == [1]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damage_is_a_miss_and_never_a_wrong_page(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = DiskStore(directory, LARGE, PAGE)
        put(store, range(6))
        store.flush()
        (path,) = files(Path(directory))
        content = bytearray(path.read_bytes())
        reopen = data.draw(st.booleans())
        if reopen:
            store.close()
        if data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        else:
            del content[data.draw(st.integers(0, len(content))) :]
        path.write_bytes(content)
        if reopen:
            store = DiskStore(directory, LARGE, PAGE)
        found = held(store, range(6))
        assert store.stats().pages == len(found)
        assert held(store, range(6)) == found
        put(store, range(6))
        store.flush()
        assert held(store, range(6)) == list(range(6))
        store.close()
        store = DiskStore(directory, LARGE, PAGE)
        assert len(held(store, range(6))) == store.stats().pages
        store.close()


def test_a_damaged_page_does_not_take_its_neighbours_along(store: DiskStore, tmp_path: Path) -> None:
    put(store, range(6))
    store.flush()
    (path,) = files(tmp_path)
    with open(path, "r+b") as file:
        file.seek(-3 * PAGE, os.SEEK_END)
        file.write(b"?" * 8)
    assert held(store, range(6)) == [0, 1, 2, 4, 5]
    assert store.stats().corrupt == 1


def test_leftovers_go_and_foreign_files_stay(tmp_path: Path) -> None:
    (tmp_path / f"half{TEMPORARY}").write_bytes(b"half")
    (tmp_path / f"broken{EXTENSION}").write_bytes(b"longturn but not really")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"folder{EXTENSION}").mkdir()
    DiskStore(tmp_path, LARGE, PAGE).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"folder{EXTENSION}", "lock", "notes.txt"]


def test_pages_of_another_size_are_counted_and_evicted_but_not_answered(tmp_path: Path) -> None:
    other = DiskStore(tmp_path, LARGE, 2 * PAGE)
    put(other, [1, 2])
    other.close()
    store = DiskStore(tmp_path, LARGE, PAGE)
    assert held(store, [1, 2]) == []
    assert (store.stats().pages, store.stats().bytes) == (0, extent_bytes(2, 2 * PAGE))
    put(store, [1])
    store.close()
    other = DiskStore(tmp_path, LARGE, 2 * PAGE)
    assert held(other, [1, 2]) == [1, 2]
    other.close()
    store = DiskStore(tmp_path, extent_bytes(2, 2 * PAGE), PAGE)
    assert store.stats().bytes == extent_bytes(2, 2 * PAGE)
    put(store, [3])
    store.flush()
    assert (held(store, [1, 2, 3]), store.stats().bytes) == ([3], extent_bytes(1, PAGE))
    store.close()


def test_one_owner_at_a_time(store: DiskStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="already open"):
        DiskStore(tmp_path, LARGE, PAGE)
    code = "import sys; from longturn.store import DiskStore; DiskStore(sys.argv[1], 2**20, 64).close()"
    child = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert f"StoreError: {tmp_path} is already open" in child.stderr
    store.close()
    DiskStore(tmp_path, LARGE, PAGE).close()


def test_refuses_what_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Choose a folder"):
        DiskStore(tmp_path / "file", LARGE, PAGE)
    with pytest.raises(StoreError):
        DiskStore(tmp_path, LARGE, 0)


def test_closed_store_accepts_nothing_and_answers_misses(store: DiskStore, tmp_path: Path) -> None:
    put(store, [1])
    store.close()
    store.close()
    assert put(store, [1]) == 0
    assert held(store, [1]) == []
    assert (store.delete(keys([1])), store.clear(), store.flush()) == (0, 0, True)
    assert len(files(tmp_path)) == 1


def test_threads_put_get_and_delete_at_once(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 40 * extent_bytes(1, PAGE), PAGE, max_queue_bytes=32 * PAGE)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(150):
                start = int(random.integers(0, 80))
                batch = range(start, start + int(random.integers(1, 9)))
                put(store, batch)
                held(store, batch)
                if random.random() < 0.1:
                    store.delete(keys(batch))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.flush(10)
    assert sum(path.stat().st_size for path in files(tmp_path)) == store.stats().bytes <= store.stats().capacity_bytes
    remaining = held(store, range(90))
    assert (len(remaining), store.stats().corrupt) == (store.stats().pages, 0)
    store.close()
    store = DiskStore(tmp_path, LARGE, PAGE)
    assert held(store, range(90)) == remaining
    store.close()
