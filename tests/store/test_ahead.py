"""Memory is ready before it is written, and keeps what it holds."""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from longturn.store import KEY_BYTES, Ahead, HostStore, ahead

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_REST", 0)


def faults(work: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def wait_for(one: Ahead) -> None:
    join()
    if not one._ready:
        pytest.skip("this kernel does not make memory ready when it is asked to")


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == "longturn-ahead":
            thread.join(30)


def test_some_more_than_is_in_use_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BYTES", 8 * MIB)
    # Two arrays of 20,000 items of 1,000 bytes.
    memory = np.frombuffer(mmap.mmap(-1, 40_000_000), np.uint8).reshape(2, 20_000, 1000)
    memory[:, :10] = 7
    one = Ahead([memory[0].ctypes.data, memory[1].ctypes.data], 20_000, 1000)
    one.reached(100)
    wait_for(one)
    step = 8 * MIB // 2000
    assert one._ready == 100 + 2 * step < 10_000
    assert (memory[:, :10] == 7).all()
    ready, other = memory[:, 10 : one._ready - 10], memory[:, 10_000:]
    assert faults(lambda: other.fill(1)) > 1000
    assert not ready.any()
    assert faults(lambda: ready.fill(1)) < 100
    # What is within is not made ready again; at the end there is no more.
    one.reached(one._ready - 2 * step)
    assert not one._working
    one.reached(19_000)
    wait_for(one)
    assert one._ready == 20_000


def test_the_host_tier_has_frames_ready() -> None:
    store = HostStore(64 * MIB, MIB)
    page = np.ones((1, MIB), np.uint8)

    def put() -> None:
        assert store.put([os.urandom(KEY_BYTES)], page) == 1

    put()
    wait_for(store._ahead)
    assert store._ahead._ready == 64
    assert faults(put) < 100


def test_a_kernel_that_cannot_make_it_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_POPULATE_WRITE", 9999)
    memory = np.frombuffer(mmap.mmap(-1, 1000), np.uint8)
    one = Ahead([memory.ctypes.data], 1000, 1)
    for _ in range(3):
        one.reached(10)
    join()
    assert one._ready == 0


def test_memory_that_is_given_back_takes_no_harm() -> None:
    memory = mmap.mmap(-1, 64 * MIB)
    place = np.frombuffer(memory, np.uint8).ctypes.data
    one = Ahead([place], 64, MIB)
    memory.close()
    one.reached(10)
    other = np.full(64 * MIB, 3, np.uint8)
    join()
    assert (other == 3).all()
