"""A process that stores pages is killed again and again; what it left behind is never a wrong page."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from longturn.store import DiskStore

PAGE = 16 * 1024
BATCH = 8

CHILD = """
import sys
import numpy as np
from longturn.store import DiskStore

directory, start, page, batch = sys.argv[1], *map(int, sys.argv[2:])
store = DiskStore(directory, 2**30, page)
print("ready", flush=True)
while True:
    numbers = range(start, start + batch)
    pages = np.stack([np.random.default_rng(n).integers(0, 256, page, np.uint8) for n in numbers])
    assert store.put([n.to_bytes(16, "big") for n in numbers], pages) == batch
    store.get([n.to_bytes(16, "big") for n in numbers])
    start += batch
    if start % (8 * batch) == 0:
        store.flush()
        print(start, flush=True)
"""


def sound_pages(store: DiskStore, numbers: range) -> list[int]:
    found = []
    for number, answer in zip(numbers, store.get([number.to_bytes(16, "big") for number in numbers]), strict=True):
        if answer is not None:
            assert np.array_equal(answer, np.random.default_rng(number).integers(0, 256, PAGE, np.uint8))
            found.append(number)
    return found


def test_killed_ten_times(tmp_path: Path) -> None:
    start, kept = BATCH, 0
    for _ in range(10):
        command = [sys.executable, "-c", CHILD, str(tmp_path), str(start), str(PAGE), str(BATCH)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.02, 0.3))
        child.kill()
        flushed = [start, *(int(line) for line in child.stdout.read().splitlines())][-1]
        child.stdout.close()
        child.wait()

        store = DiskStore(tmp_path, 2**30, PAGE)
        assert not list(tmp_path.glob("*.tmp"))
        numbers = range(start, flushed + 200 * BATCH)
        found = sound_pages(store, numbers)
        assert set(range(start, flushed)) <= set(found)
        assert store.stats().corrupt == 0
        kept += len(found)
        assert store.stats().pages == kept
        store.close()
        start = found[-1] + 1 if found else start
        start += -start % BATCH
    assert kept > 10 * BATCH
