"""`calibrate`: time, fit, foretell what was held out, and make a profile of it."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from longturn.engine import EngineOptions
from longturn.engine.build import Built, build
from longturn.engine.cost import (
    Calibration,
    CostModel,
    HardwareProfile,
    Link,
    ModelProfile,
    list_profiles,
    load_model_profile,
)
from longturn.engine.cost.config import profile_of_folder
from longturn.engine.runner.torch_runner import TorchRunner
from longturn.errors import ConfigError
from longturn.lab.calibrate.fit import fit, non_negative
from longturn.lab.calibrate.machine import machine, software
from longturn.lab.calibrate.profile import Scheduling, local_profile, rates_of
from longturn.lab.calibrate.steps import KNOTS, Step, steps_to_time
from longturn.lab.calibrate.timing import medians, time_step, time_transfers
from longturn.lab.calibrate.workload import Stepped, run_conversations, typical

Progress = Callable[[str], None]

# Tokens of the pool in which steps are timed.
_SLOTS = 36_000
_FITTED_SEED, _HELD_OUT_SEED = 1, 2
# Beyond this median error of held-out steps a profile is no good; beyond this load others are in the way.
_LARGE_ERROR, _BUSY_SHARE = 0.15, 0.25


@dataclass(frozen=True)
class Calibrated:
    """A fitted profile, and the relative errors of held-out steps by their kind: "prompt", "decode", "mixed".

    provenance: how well calibrated modelled numbers of the model are; warnings: why they may be worse than need be.
    """

    profile: HardwareProfile
    provenance: str
    errors: dict[str, list[float]]
    warnings: list[str]


def calibrate(model: str = "demo", *, quick: bool = False, progress: Progress = lambda message: None) -> Calibrated:
    """Fit the profile `local` of this machine to real steps of a model. Takes minutes; `quick`: less, and worse.

    Raises ConfigError or ModelError when the model cannot be run.
    """
    load = os.getloadavg()[0]
    rounds, turns = (1, 2) if quick else (3, 4)
    built = build(EngineOptions(model=model, device_tokens=_SLOTS, host_bytes=0), progress)
    try:
        runner = built.engine.runner
        assert isinstance(runner, TorchRunner)
        profile = _profile_of(built, model)
        steps, seconds = _timed_steps(runner, rounds, quick, progress)
        progress("holding conversations to fit")
        fitted = _conversations(built, rounds, turns, _FITTED_SEED)
        progress("holding conversations to foretell")
        held_out = _conversations(built, rounds, turns, _HELD_OUT_SEED)
        progress("moving pages")
        links = _links(runner, rounds)
        every_step = [*steps, *(stepped.step for stepped in fitted)]
        every_second = [*seconds, *(stepped.model_seconds for stepped in fitted)]
        coefficients = fit(every_step, every_second, KNOTS)
        rates = rates_of(profile, coefficients, every_step, every_second)
        where, made_with = machine(runner), software(runner)
    finally:
        built.close()
    calibration = Calibration(
        model=profile.name,
        date=datetime.date.today().isoformat(),
        machine=where.title,
        software=made_with,
        fitted=len(every_step),
        held_out=0,
        median_error=0.0,
        p95_error=0.0,
        coefficients=coefficients,
        layers=built.engine.runner.shape.layers,
    )
    hardware = local_profile(profile.title, where, rates, links, _scheduling(fitted), calibration)
    errors = _errors(CostModel(profile, hardware), held_out)
    every = [error for kind in errors.values() for error in kind]
    calibration = msgspec.structs.replace(
        calibration,
        held_out=len(every),
        median_error=float(np.median(every)),
        p95_error=float(np.quantile(every, 0.95)),
    )
    hardware = msgspec.structs.replace(hardware, calibration=calibration)
    return Calibrated(hardware, CostModel(profile, hardware).provenance, errors, _warnings(calibration, load))


def _profile_of(built: Built, model: str) -> ModelProfile:
    """The packaged profile with the figures of the model that runs, or else one named after it."""
    shape = built.engine.runner.shape
    own = profile_of_folder(built.model.path)
    if own.token_bytes != shape.token_bytes:
        own = profile_of_folder(built.model.path, own.kv_bytes * shape.token_bytes / own.token_bytes)
    for name in list_profiles()["models"]:
        known = load_model_profile(name)
        if own == msgspec.structs.replace(known, name=own.name, title=own.title, sources=own.sources):
            return known
    return msgspec.structs.replace(own, name=Path(model).name)


def _timed_steps(runner: TorchRunner, rounds: int, quick: bool, progress: Progress) -> tuple[list[Step], list[float]]:
    """Steps by themselves, each once a round and the rounds in other orders, so that a busy moment hits few twice."""
    steps = steps_to_time(runner.shape.context, _SLOTS, quick=quick)
    rng = np.random.default_rng(0)
    taken = np.empty((rounds, len(steps)))
    # The first step of a shape makes its kernels.
    for step in steps[:4]:
        time_step(runner, step, rng)
    for at in range(rounds):
        progress(f"timing {len(steps)} kinds of steps, round {at + 1} of {rounds}")
        for number in rng.permutation(len(steps)):
            taken[at, number] = time_step(runner, steps[number], rng)
    return steps, medians(taken.tolist())


def _conversations(built: Built, rounds: int, turns: int, seed: int) -> list[Stepped]:
    taken = []
    for _ in range(rounds):
        built.engine.cache.clear("device")
        taken.append(run_conversations(built.engine, turns, seed))
    return typical(taken)


def _links(runner: TorchRunner, rounds: int) -> dict[str, Link]:
    with tempfile.TemporaryDirectory(prefix="longturn-calibrate-") as folder:
        taken = time_transfers(runner, Path(folder), max(rounds, 2))
    links = {}
    for link, moves in taken.items():
        features = np.array([[1.0, n_bytes] for n_bytes, _ in moves])
        latency, per_byte = non_negative(features, np.array([seconds for _, seconds in moves]))
        if per_byte <= 0:
            raise ConfigError(f"moving more bytes over {link} took no longer here: calibrate on a quiet machine")
        links[link] = Link(bandwidth=1 / float(per_byte), latency=float(latency))
    return links


def _scheduling(fitted: Sequence[Stepped]) -> Scheduling:
    features = [[1.0, len(stepped.step), (stepped.begun + stepped.ended) / 2] for stepped in fitted]
    each = non_negative(np.array(features), np.array([stepped.own_seconds for stepped in fitted]))
    return Scheduling(*(float(seconds) for seconds in each))


def _errors(cost: CostModel, held_out: Sequence[Stepped]) -> dict[str, list[float]]:
    errors: dict[str, list[float]] = {}
    for stepped in held_out:
        foretold = cost.step_seconds(stepped.step) + cost.request_seconds * (stepped.begun + stepped.ended) / 2
        took = stepped.model_seconds + stepped.own_seconds
        prompts = sum(span.prompt for span in stepped.step)
        kind = "decode" if not prompts else "prompt" if prompts == len(stepped.step) else "mixed"
        errors.setdefault(kind, []).append(abs(foretold / took - 1))
    return errors


def _warnings(calibration: Calibration, load: float) -> list[str]:
    warnings = []
    if load > _BUSY_SHARE * (os.cpu_count() or 1):
        warnings.append(f"the load was {load:.1f} before the start: calibrate again when the machine is quiet")
    if calibration.median_error > _LARGE_ERROR:
        warnings.append(
            f"held-out steps were foretold {calibration.median_error:.0%} wrong in the median: do not trust modelled "
            "times of this profile, calibrate again when the machine is quiet"
        )
    return warnings
