"""The profile `local` from what was measured, with rates for other models that follow from how fast this one was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from longturn.engine.cost import Calibration, Coefficients, HardwareProfile, Link, ModelProfile
from longturn.lab.calibrate.machine import Machine
from longturn.lab.calibrate.steps import Step


class Rates(NamedTuple):
    """FLOP/s that linear layers and attention reach, and bytes per second at which weights are read."""

    linear: float
    attention: float
    memory: float


class Scheduling(NamedTuple):
    """CPU seconds of the engine per step, per request in it, and per request once."""

    step: float
    span: float
    request: float


def rates_of(model: ModelProfile, coefficients: Coefficients, steps: Sequence[Step], seconds: Sequence[float]) -> Rates:
    """What the largest and the smallest of the timed steps say about the machine.

    All of a step of one token is taken for reading the weights, which is too much for a small model: larger ones are
    foretold too slow rather than too fast.
    """
    large = max(range(len(steps)), key=lambda at: sum(span.n for span in steps[at]))
    small = min(range(len(steps)), key=lambda at: sum(span.start + span.n for span in steps[at]))
    attention = sum(coefficients.prompt.seconds(span.n, span.start) for span in steps[large] if span.prompt)
    # Should the fit take more than half of it for attention, it is no good: the half bounds what comes of that.
    linear = max(seconds[large] - attention, seconds[large] / 2)
    body = 2.0 * (model.active_parameters - model.head_parameters) * sum(span.n for span in steps[large]) / linear
    return Rates(
        linear=body,
        attention=model.pair_flops / coefficients.prompt.pair if coefficients.prompt.pair else body,
        memory=model.parameters_read(1) * model.weight_bytes / seconds[small],
    )


def local_profile(
    fitted_to: str,
    machine: Machine,
    rates: Rates,
    links: Mapping[str, Link],
    scheduling: Scheduling,
    calibration: Calibration,
) -> HardwareProfile:
    """Put the profile together. Its rates are what was reached, so all efficiencies but attention's are 1."""
    source = f"fitted to steps of {fitted_to} on {calibration.date}"
    return HardwareProfile(
        name="local",
        title=machine.title,
        flops={"bf16": rates.linear},
        memory_bytes=machine.memory_bytes,
        memory_bandwidth=rates.memory,
        compute_efficiency=1.0,
        attention_efficiency=min(rates.attention / rates.linear, 1.0),
        memory_efficiency=1.0,
        step_seconds=0.0,
        scheduling_step=scheduling.step,
        scheduling_span=scheduling.span,
        request_seconds=scheduling.request,
        links=dict(links),
        sources={
            "flops": f"{source}: linear layers of the largest step",
            "memory_bytes": "what the device reports",
            "memory_bandwidth": f"{source}: all of a step of one token is taken for reading the weights",
            "efficiencies": f"{source}: part of the rates, and attention beside them",
            "scheduling": f"{source}: seconds of the engine around the model",
            "links": "fitted to moves of pages; files that were read may still have been in memory",
        },
        calibration=calibration,
    )
