"""How much of the gap between LRU and the optimum a policy closes."""

from __future__ import annotations

import pytest

from longturn.lab.bounds import gap_closed


@pytest.mark.parametrize(("policy", "closed"), [(0.2, 0), (0.4, 1), (0.3, 0.5), (0.1, -0.5)])
def test_share_of_the_gap(policy: float, closed: float) -> None:
    assert gap_closed(policy, 0.2, 0.4) == pytest.approx(closed)


@pytest.mark.parametrize("optimum", [0.3, 0.1 + 0.2, 0.3 - 1e-15])
def test_no_gap_to_close(optimum: float) -> None:
    assert gap_closed(0.25, 0.3, optimum) is None
