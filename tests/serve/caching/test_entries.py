"""Entries expire, live again on use, and are bounded."""

from __future__ import annotations

import numpy as np

from longturn.serve.caching.entries import Entries, prefix_keys


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_entry_lives_as_long_as_it_was_written_for_and_again_after_each_use():
    clock = Clock()
    entries = Entries(clock=clock)
    entries.write(b"a", 10, life=300)
    clock.now = 299
    entries.use(b"a")
    clock.now = 500
    found = entries.find(b"a")
    assert found is not None
    assert found.tokens == 10
    clock.now = 600
    assert entries.find(b"a") is None


def test_a_shorter_life_does_not_cut_a_longer_one():
    clock = Clock()
    entries = Entries(clock=clock)
    entries.write(b"a", 10, life=3600)
    entries.write(b"a", 10, life=300)
    clock.now = 3000
    assert entries.find(b"a") is not None
    entries.forget(b"a")
    assert entries.find(b"a") is None


def test_the_least_recently_used_goes_first():
    entries = Entries(limit=2)
    for key in (b"a", b"b"):
        entries.write(key, 1, life=60)
    entries.use(b"a")
    entries.write(b"c", 1, life=60)
    assert [entries.find(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]


def test_keys_are_those_of_equal_prefixes_in_one_scope():
    tokens = np.arange(100, dtype=np.int32)
    long, short = prefix_keys("s", tokens, [10, 50]), prefix_keys("s", tokens[:50], [50])
    assert long[1] == short[0]
    assert long[0] != long[1]
    assert prefix_keys("t", tokens, [10, 50])[1] != long[1]
