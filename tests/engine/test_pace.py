"""How prompts share steps with streams that are running."""

from __future__ import annotations

import pytest

from longturn.engine.pace import MOST_STALL, Pace


def steps(pace: Pace, n: int, decoding: int, idle_s: float, token_s: float) -> list[int]:
    """Tokens of prompts that n steps take, where time passes as said."""
    taken = []
    for _ in range(n):
        taken.append(pace.prompt_tokens(decoding))
        pace.took(decoding, taken[-1], idle_s + taken[-1] * token_s)
    return taken


def test_the_first_step_is_without_a_prompt_and_the_next_takes_what_it_may() -> None:
    assert steps(Pace(512), 2, 4, 0.03, 0.001) == [0, 512]


@pytest.mark.parametrize("token_s", [0.0001, 0.0004, 0.002])
def test_it_finds_the_stall_that_is_allowed(token_s: float) -> None:
    n = steps(Pace(512), 30, 4, 0.040, token_s)[-1]
    borne = (MOST_STALL - 1) * 0.040 / token_s
    assert min(borne, 512) - 64 <= n <= max(borne, 16)


def test_a_prompt_gets_on_however_slow_it_is() -> None:
    assert steps(Pace(512), 30, 16, 0.01, 1.0)[-1] == 16


def test_streams_that_grow_slower_are_not_taken_for_the_prompts() -> None:
    """With prompts waiting all the time, no step would ever be without one, and prompts would get less and less."""
    pace = Pace(512)
    before = steps(pace, 30, 16, 0.03, 0.0004)[-1]
    assert steps(pace, 200, 16, 0.09, 0.0004)[-1] > before
    # More streams than it was learned for.
    assert steps(pace, 30, 64, 0.3, 0.0004)[-1] == 512
