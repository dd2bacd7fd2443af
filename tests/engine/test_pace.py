"""How prompts share steps with streams that are running."""

from __future__ import annotations

import pytest

from longturn.engine.pace import MOST_STALL, Pace


def test_it_takes_what_it_may_before_anything_is_known() -> None:
    pace = Pace(512)
    assert pace.prompt_tokens(4) == 512
    pace.took(0, 0.03)
    assert pace.prompt_tokens(4) == 512


@pytest.mark.parametrize("token_ms", [0.1, 0.4, 2.0])
def test_it_finds_the_stall_that_is_allowed(token_ms: float) -> None:
    pace, idle = Pace(512), 0.040
    for _ in range(10):
        pace.took(0, idle)
    n = 512
    for _ in range(20):
        n = pace.prompt_tokens(4)
        pace.took(n, idle + n * token_ms / 1e3)
    assert n == 512 or n == 16 or n < 60 or (n + 4) % 64 == 0
    borne = (MOST_STALL - 1) * idle / (token_ms / 1e3)
    assert min(borne, 512) - 64 <= n <= max(borne, 16)


def test_a_prompt_gets_on_however_slow_it_is() -> None:
    pace = Pace(512)
    pace.took(0, 0.01)
    pace.took(512, 60.0)
    assert pace.prompt_tokens(16) == 16
