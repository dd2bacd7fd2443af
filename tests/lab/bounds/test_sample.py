"""A sample of the blocks against all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.errors import ConfigError
from longturn.lab.bounds import infinite, lru, lru_curve, optimum, sample
from longturn.lab.bounds.sample import path_hashes
from longturn.lab.trace.reuse import Reuse, reuse
from tests.lab.bounds.plain import Listed, Request, answered, chats, requests

LARGE = chats(3000, seed=1)


@pytest.fixture(scope="module")
def exact() -> Reuse:
    return reuse(LARGE)


@given(requests)
def test_hashes_name_paths(listed: list[Request]) -> None:
    trace = Listed(listed)
    named = {
        (path, int(key))
        for request, blocks in zip(trace, trace.paths(), strict=True)
        for path, key in zip(blocks, path_hashes(request.prompt.ids(), request.salt), strict=True)
    }
    assert len(named) == len({path for path, _ in named}) == len({key for _, key in named})


def test_hashes_are_even() -> None:
    shares = np.histogram(path_hashes(np.arange(100_000)).astype(float), bins=10, range=(0, 2.0**64))[0] / 100_000
    assert shares == pytest.approx(0.1, abs=0.005)


@given(answered, st.booleans())
def test_all_blocks_are_a_sample(listed: list[Request], answers: bool) -> None:
    whole, exact = sample(Listed(listed), 1, answers=answers), reuse(Listed(listed), answers=answers)
    assert list(whole.runs()) == list(exact.runs())
    assert (whole.accesses, whole.looked_at, whole.unique) == (exact.accesses, exact.looked_at, exact.unique)


def test_a_tenth_is_enough(exact: Reuse) -> None:
    tenth = sample(LARGE, 0.1)
    assert 0 < tenth.looked_at < 0.2 * exact.looked_at
    assert tenth.accesses == exact.accesses
    assert tenth.unique == pytest.approx(exact.unique, rel=0.05)
    assert infinite(tenth) == pytest.approx(infinite(exact), abs=0.01)
    curve, sampled = lru_curve(exact), lru_curve(tenth)
    for capacity in np.geomspace(1000, exact.unique, 10).astype(int).tolist():
        assert sampled.hit_ratio(capacity) == pytest.approx(curve.hit_ratio(capacity), abs=0.03)
        assert lru(tenth, capacity) == pytest.approx(sampled.hit_ratio(capacity), abs=0.003)
        assert optimum(tenth, capacity) == pytest.approx(optimum(exact, capacity), abs=0.03)
    assert sampled.largest == pytest.approx(curve.largest, rel=0.05)


def test_room_for_one_block_is_room_for_one_of_the_sample() -> None:
    found = sample(Listed([("", [1])] * 10), 0.5)
    assert found.looked_at == 10, "this block is one that is followed"
    assert lru(found, 1) == optimum(found, 1) == lru_curve(found).hit_ratio(1) == pytest.approx(1 - 1 / (10 * 0.5))


def test_no_cache_hits_nothing() -> None:
    found = sample(LARGE, 0.3)
    assert lru(found, 0) == optimum(found, 0) == lru_curve(found).hit_ratio(0) == 0


@pytest.mark.parametrize("rate", [0, -0.5, 1.5, float("nan")])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate above 0"):
        sample(LARGE, rate)


def test_a_rate_that_is_too_low() -> None:
    with pytest.raises(ConfigError, match="higher rate"):
        sample(chats(3), 1e-9)
