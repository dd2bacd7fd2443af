"""The figures that are known of public traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from longturn.lab.bounds import infinite, lru, lru_curve, optimum
from longturn.lab.trace import open_trace
from longturn.lab.trace.form import Trace
from longturn.lab.trace.reuse import Reuse, reuse
from tests.lab.bounds.plain import hits_of_lru

TRACES = Path(__file__).parents[4] / "shared" / "traces"


def public(name: str) -> Trace:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here: the public traces lie beside the repository")
    return open_trace(path)


@pytest.fixture(scope="module")
def mooncake() -> Trace:
    return public("mooncake_conversation_trace.jsonl.gz")


@pytest.fixture(scope="module")
def chats(mooncake: Trace) -> Reuse:
    return reuse(mooncake)


def test_mooncake(chats: Reuse) -> None:
    assert (chats.accesses, chats.unique) == (288_500, 182_790)
    assert infinite(chats) == pytest.approx(0.366, abs=5e-4)


@pytest.mark.parametrize(
    ("share", "recent", "best"),
    [(0.01, 0.052, 0.246), (0.05, 0.196, 0.366), (0.10, 0.279, 0.366), (0.25, 0.353, 0.366)],
)
def test_mooncake_at(chats: Reuse, share: float, recent: float, best: float) -> None:
    capacity = int(chats.unique * share)
    assert lru(chats, capacity) == pytest.approx(recent, abs=5e-4)
    assert optimum(chats, capacity) == pytest.approx(best, abs=5e-4)


def test_mooncake_curve_is_the_plain_lru(mooncake: Trace, chats: Reuse) -> None:
    """Ids of this trace name paths, so they can stand for the blocks."""
    paths = [request.prompt.ids().tolist() for request in mooncake]
    curve = lru_curve(chats)
    for capacity in np.geomspace(10, curve.largest, 10).astype(int).tolist():
        assert curve.hit_ratio(capacity) == chats.hit_ratio(hits_of_lru(paths, capacity))


def test_the_points_that_are_shown_are_dense_enough(chats: Reuse) -> None:
    """Straight lines between them stay within a thousandth of the curve."""
    curve = lru_curve(chats)
    shown = curve.points(1000)
    between = np.unique(np.geomspace(1, curve.largest, 3000).astype(int))
    lines = np.interp(between, [capacity for capacity, _ in shown], [ratio for _, ratio in shown])
    assert lines == pytest.approx([curve.hit_ratio(int(capacity)) for capacity in between], abs=1e-3)


def test_weka() -> None:
    """Sessions begin at random, which moves the figures of small caches by some hundredths."""
    found = reuse(public("weka_claude_code_dev.jsonl.gz"))
    assert found.accesses == 49_347_835
    assert infinite(found) == pytest.approx(0.963, abs=5e-4)
    one, five = found.unique // 100, found.unique // 20
    assert lru(found, one) == pytest.approx(0.771, abs=0.04)
    assert optimum(found, one) == pytest.approx(0.870, abs=0.02)
    assert lru(found, five) == pytest.approx(0.960, abs=0.005)
    assert optimum(found, five) == pytest.approx(0.965, abs=0.005)
    assert lru_curve(found).hit_ratio(one) == lru(found, one)
