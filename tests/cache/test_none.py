"""The baseline without a cache."""

from __future__ import annotations

import pytest

from longturn.cache import Hint, NoCache
from longturn.errors import CacheCorruption
from tests.cache.bench import array, text


def test_a_life() -> None:
    cache = NoCache(50)
    for _ in range(2):
        hit = cache.lookup(array(text(20)))
        assert hit.total == 0
        assert cache.prefetch(hit) is None
        allocation = cache.admit(hit, 10)
        assert allocation is not None
        assert (allocation.reused, len(allocation.runs)) == (0, 30)
        assert cache.extend(allocation, 50)
        assert not cache.extend(allocation, 51)
        assert cache.admit(hit, 1) is None
        cache.commit(allocation, array(text(20)))
        assert cache.hint(Hint("pin", array(text(20)))) == 0
        assert cache.take_transfers() == []
        assert cache.state().tiers[0].used == 50
        cache.check_integrity()
        cache.release(allocation)
        assert cache.state().tiers[0].used == 0
        cache.check_integrity()


def test_a_lost_slot_is_found() -> None:
    cache = NoCache(50)
    cache._pool.allocate(1)
    with pytest.raises(CacheCorruption):
        cache.check_integrity()
