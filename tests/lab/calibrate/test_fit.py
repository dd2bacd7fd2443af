"""The fit: the best non-negative answer, found again from steps of known cost, whatever held a few of them up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.engine.cost import (
    Attention,
    Calibration,
    Coefficients,
    CostModel,
    load_hardware_profile,
    load_model_profile,
)
from longturn.lab.calibrate.fit import fit, least_squares
from longturn.lab.calibrate.steps import KNOTS, steps_to_time

TRUE = Coefficients(
    # Half a jump up after each block of 64 tokens.
    rows=tuple((n, 0.01 + 4e-4 * (n // 2 + (n + 63) // 64 * 32)) for n in KNOTS),
    prompt=Attention(pair=6e-7, context=9e-6, floor=0.0),
    decode=Attention(pair=5e-6, context=0.0, floor=0.0),
    prompt_span=0.003,
    decode_span=0.001,
)
STEPS = steps_to_time(8192, 36_000, quick=False)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 20))
def test_the_answer_is_the_best_non_negative_one(seed: int, columns: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    features, target = rng.normal(0, 1, (rows, columns)), rng.normal(0.5, 1, rows)
    found = least_squares(features, target)
    assert (found >= 0).all()
    # The conditions of Karush, Kuhn and Tucker, which hold at the optimum alone: no coefficient can be changed for the
    # better. The error's slope is 0 where it is positive, and upward where it is 0.
    slope = features.T @ (features @ found - target)
    assert (slope > -1e-7).all()
    assert np.abs(slope[found > 0]).max(initial=0) < 1e-7


def test_known_costs_are_found_again() -> None:
    seconds = [cost(TRUE).model_seconds(step) for step in STEPS]
    found = fit(STEPS, seconds, KNOTS)
    assert [cost(found).model_seconds(step) for step in STEPS] == pytest.approx(seconds, rel=1e-4)
    assert found.prompt.pair == pytest.approx(TRUE.prompt.pair, rel=1e-2)
    assert found.decode.pair == pytest.approx(TRUE.decode.pair, rel=1e-2)
    assert [n for n, _ in found.rows] == list(KNOTS)


def test_steps_that_were_held_up_hardly_count() -> None:
    rng = np.random.default_rng(0)
    true = np.array([cost(TRUE).model_seconds(step) for step in STEPS])
    noisy = true * rng.normal(1, 0.01, len(true))
    # Steps that have fellows of nearly the same shape; one on a knot alone cannot be told from a true jump.
    held_up = [at for at, step in enumerate(STEPS) if len(step) == 8 and step[0].n == 1]
    noisy[held_up[::2]] *= 4
    found = cost(fit(STEPS, noisy.tolist(), KNOTS))
    errors = np.abs(np.array([found.model_seconds(step) for step in STEPS]) / true - 1)
    assert np.quantile(errors, 0.9) < 0.05


def test_a_knot_that_no_step_stands_on_is_left_out() -> None:
    steps = [step for step in STEPS if sum(span.n for span in step) != 129]
    found = fit(steps, [cost(TRUE).model_seconds(step) for step in steps], KNOTS)
    assert [n for n, _ in found.rows] == [n for n in KNOTS if n != 129]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("context", "slots"), [(8192, 36_000), (2048, 4000)])
def test_steps_fit_the_model_and_the_pool(quick: bool, context: int, slots: int) -> None:
    steps = steps_to_time(context, slots, quick=quick)
    assert all(span.start + span.n <= context for step in steps for span in step)
    assert all(sum(span.start + span.n for span in step) <= slots for step in steps)
    kinds = {tuple(sorted({span.prompt for span in step})) for step in steps}
    assert kinds == {(False,), (True,), (False, True)}
    assert (len(steps) > 70) == (not quick and context == 8192)


def cost(coefficients: Coefficients) -> CostModel:
    import msgspec

    calibration = Calibration("smollm2-135m", "", "", "", 0, 0, 0.0, 0.0, coefficients)
    hardware = msgspec.structs.replace(load_hardware_profile("cpu-2core"), calibration=calibration)
    return CostModel(load_model_profile("smollm2-135m"), hardware)
