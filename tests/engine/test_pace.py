"""How prompts share steps with streams that are running."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.engine.pace import MOST_STALL, Pace

LAYERS = 30


def steps(pace: Pace, n: int, decoding: int, idle_s: float, token_s: float) -> list[float]:
    """Tokens of prompts that n steps take, where time passes as said."""
    taken = []
    for _ in range(n):
        taken.append(pace.budget(decoding))
        pace.took(decoding, taken[-1], idle_s + taken[-1] * token_s)
    return taken


def test_the_first_step_is_without_a_prompt_and_those_after_it_feel_their_way() -> None:
    assert steps(Pace(512), 5, 4, 0.03, 0.0001) == [0, 16, 32, 64, 128]
    assert steps(Pace(512, 32), 4, 4, 0.03, 0.0001) == [0, 2, 4, 8]


@pytest.mark.parametrize("layers", [1, LAYERS])
@pytest.mark.parametrize("token_s", [0.0001, 0.0004, 0.002])
def test_it_finds_the_stall_that_is_allowed(token_s: float, layers: int) -> None:
    n = steps(Pace(512, layers), 30, 4, 0.040, token_s)[-1]
    borne = (MOST_STALL - 1) * 0.040 / token_s
    assert n == pytest.approx(min(max(borne, 16 if layers == 1 else 64 / LAYERS), 512))


@pytest.mark.parametrize(("layers", "least"), [(1, 16), (LAYERS, 64 / LAYERS), (80, 1)])
def test_a_prompt_gets_on_however_slow_it_is(layers: int, least: float) -> None:
    assert steps(Pace(512, layers), 30, 16, 0.01, 1.0)[-1] == least


def test_a_step_that_was_slow_by_chance_changes_nothing() -> None:
    pace = Pace(512)
    usual = steps(pace, 200, 4, 0.030, 0.0004)[-1]
    pace.took(4, 0, 0.5)
    pace.took(4, 32, 0.5)
    assert pace.budget(4) == pytest.approx(usual)


def test_steps_that_cost_less_than_nothing_do_not_let_a_whole_prompt_in() -> None:
    pace = Pace(512, LAYERS)
    pace.took(4, 0, 0.030)
    pace.took(4, 2.0, 0.029)
    assert pace.budget(4) == 4


def test_streams_that_grow_slower_are_not_taken_for_the_prompts() -> None:
    """With prompts waiting all the time, no step would ever be without one, and prompts would get less and less."""
    pace = Pace(512)
    before = steps(pace, 30, 16, 0.03, 0.0004)[-1]
    assert steps(pace, 600, 16, 0.09, 0.0004)[-1] > before
    # More streams than it was learned for.
    assert steps(pace, 30, 64, 0.4, 0.0004)[-1] == 512


@given(st.floats(1, 600), st.integers(1, 200))
def test_rows_of_a_step_are_a_multiple_of_64_where_they_can_be(budget: float, decoding: int) -> None:
    whole, parts = Pace(512).tokens(budget, decoding), Pace(512, LAYERS).tokens(budget, decoding)
    assert 1 <= whole <= budget
    assert (parts + decoding) % 64 == 0
    assert parts >= 1
    if whole + decoding >= decoding // 64 * 64 + 64:
        assert whole == parts


@given(st.floats(0.5, 600), st.integers(2, 200), st.integers(1, 80))
def test_tokens_get_through_all_layers_and_no_step_takes_more_than_it_may(budget: float, n: int, layers: int) -> None:
    pace, reached = Pace(512, layers), [0]
    while reached[-1] < layers:
        reached.append(pace.until(budget, n, reached[-1]))
        assert len(reached) <= layers + 1
    assert reached[-1] == layers
    for before, after in pairwise(reached):
        assert after > before
        assert after == before + 1 or n * (after - before) / layers <= budget + 1e-9
