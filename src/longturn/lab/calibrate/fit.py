"""Coefficients that foretell timed steps best: least squares of relative errors, no negative cost, outliers damped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longturn.engine.cost import Attention, Coefficients
from longturn.lab.calibrate.steps import Step

Floats = npt.NDArray[np.float64]

# Relative errors beyond this weigh no more than in proportion (Huber): a step that something else held up.
_USUAL_ERROR = 0.05
_REWEIGHTINGS = 10


def fit(steps: Sequence[Step], seconds: Sequence[float], knots: Sequence[int]) -> Coefficients:
    """Coefficients of steps that took so many seconds each, all of whose spans went through all layers.

    knots: tokens of a step where its cost may bend.
    """
    # A knot that no step stands on would float freely.
    stood_on = {sum(span.n for span in step) for step in steps}
    knots = [n for n in knots if n in stood_on]
    found = non_negative(np.array([_features(step, knots) for step in steps]), np.array(seconds))
    pair, context, prompt_span, decode, decode_span = (float(value) for value in found[len(knots) :])
    return Coefficients(
        rows=tuple((n, float(value)) for n, value in zip(knots, found, strict=False)),
        prompt=Attention(pair=pair, context=context, floor=0.0),
        decode=Attention(pair=decode, context=0.0, floor=0.0),
        prompt_span=prompt_span,
        decode_span=decode_span,
    )


def non_negative(features: Floats, seconds: Floats) -> Floats:
    """x [k] of 0 or more with features [n, k] @ x near seconds [n]: iteratively reweighted, relative to the seconds."""
    relative, one = features / seconds[:, None], np.ones(len(seconds))
    weights = one
    found = least_squares(relative, one)
    for _ in range(_REWEIGHTINGS):
        error = np.abs(relative @ found - 1)
        weights = np.sqrt(_USUAL_ERROR / np.maximum(error, _USUAL_ERROR))
        found = least_squares(relative * weights[:, None], weights)
    return found


def _features(step: Step, knots: Sequence[int]) -> list[float]:
    """What a step has of each coefficient, in the order in which `fit` takes them apart."""
    row = [0.0] * (len(knots) + 5)
    tokens = sum(span.n for span in step)
    left = min(max(bisect_right(knots, tokens) - 1, 0), len(knots) - 2)
    share = (tokens - knots[left]) / (knots[left + 1] - knots[left])
    row[left], row[left + 1] = 1 - share, share
    pairs = Attention(pair=1.0, context=0.0, floor=0.0)
    for n, start, prompt, _ in step:
        if prompt:
            row[-5] += pairs.seconds(n, start)
            row[-4] += start
            row[-3] += 1
        else:
            row[-2] += pairs.seconds(n, start)
            row[-1] += 1
    return row


def least_squares(features: Floats, target: Floats) -> Floats:
    """x [k] of 0 or more that minimises |features [n, k] @ x - target [n]|, by active sets.

    The algorithm of Lawson and Hanson (Solving Least Squares Problems, 1974).
    """
    scale = np.linalg.norm(features, axis=0)
    features = features / np.where(scale > 0, scale, 1)
    n = features.shape[1]
    found, free = np.zeros(n), np.zeros(n, dtype=bool)
    tolerance = 1e-9 * np.linalg.norm(target)
    for _ in range(10 * n):
        gradient = features.T @ (target - features @ found)
        gradient[free] = -np.inf
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        free[gradient.argmax()] = True
        while True:
            trial = np.zeros(n)
            trial[free] = np.linalg.lstsq(features[:, free], target, rcond=None)[0]
            below = free & (trial <= 0)
            if not below.any():
                break
            # As far towards the trial as nothing turns negative; what reached zero is held there.
            share = (found[below] / (found[below] - trial[below])).min()
            found += share * (trial - found)
            free &= found > 1e-15
        found = trial
    return found / np.where(scale > 0, scale, 1)
