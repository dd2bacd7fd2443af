"""`CostModel`: how long steps and transfers take on a machine, and how much that can be trusted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longturn.engine.cost.hardware_profile import HardwareProfile
from longturn.engine.cost.model_profile import ModelProfile
from longturn.engine.cost.roofline import devices_needed, roofline
from longturn.engine.runner.contract import ModelShape
from longturn.errors import ConfigError


class StepSpan(NamedTuple):
    """`n` tokens of one request at positions from `start` on; prompt: a chunk of a prompt, else a generated token.

    part: of all layers, those that it goes through in this step.
    """

    n: int
    start: int
    prompt: bool
    part: float = 1.0


class CostModel:
    """The cost of a model on hardware. Nothing here has state; all seconds are modelled.

    devices: tensor parallel over so many, by default the smallest power of two that holds the weights. Raises
    ConfigError when the weights do not fit, or several devices have no link.

    shape: the model's figures as the scheduler and the cache need them; request_seconds: what a request takes besides
    its steps (queueing, admission, release; no tokenising); provenance: one line to print with every number from here;
    calibrated: whether the numbers were fitted to this model on this hardware.
    """

    def __init__(self, model: ModelProfile, hardware: HardwareProfile, devices: int | None = None) -> None:
        needed = devices_needed(model, hardware)
        if devices is not None and devices < needed:
            raise ConfigError(
                f"{model.title} has {model.parameters * model.weight_bytes / 1e9:.0f} GB of weights, which do not fit "
                f"{devices} x {hardware.title}: take {needed} devices or more"
            )
        self.model = model
        self.hardware = hardware
        self.devices = devices or needed
        calibration = hardware.calibration
        self.calibrated = calibration is not None and calibration.model == model.name and self.devices == 1
        if calibration is not None and self.calibrated:
            self.coefficients = calibration.coefficients
        else:
            self.coefficients = roofline(model, hardware, self.devices)
        self._tokens = [tokens for tokens, _ in self.coefficients.rows]
        self._seconds = [seconds for _, seconds in self.coefficients.rows]
        self.request_seconds = hardware.request_seconds
        self.shape = ModelShape(
            context=model.context,
            vocab_size=model.vocab,
            token_bytes=model.token_bytes,
            weight_bytes=int(model.parameters * model.weight_bytes),
            linear_flops=2.0 * model.active_parameters,
            attention_flops=model.pair_flops,
            layers=calibration.layers if calibration is not None and self.calibrated else 1,
        )

    @property
    def provenance(self) -> str:
        """Says that it is modelled, of what, and how well calibrated."""
        where = f"{self.model.title} on {self.devices} x {self.hardware.title}"
        calibration = self.hardware.calibration
        if calibration is None:
            return f"modelled: {where}; not calibrated: datasheet numbers with assumed efficiencies"
        fitted = f"fitted to {calibration.model} on {calibration.date}"
        if not self.calibrated:
            return f"modelled: {where}; not calibrated for this model: rates {fitted}"
        return (
            f"modelled: {where}; calibrated: {fitted}, held-out error of a step's time "
            f"{calibration.median_error:.1%} median, {calibration.p95_error:.1%} p95"
        )

    def step_seconds(self, spans: Sequence[StepSpan]) -> float:
        """Seconds of one step of the engine: the model's, and scheduling around it. 0 for a step of nothing."""
        return self.model_seconds(spans) + self.scheduling_seconds(len(spans))

    def model_seconds(self, spans: Iterable[StepSpan]) -> float:
        """Device seconds of one step of the model."""
        coefficients, seconds, n_whole, in_part = self.coefficients, 0.0, 0, []
        for n, start, prompt, part in spans:
            if part == 1:
                n_whole += n
            else:
                in_part.append((n, part))
            if prompt:
                seconds += part * (coefficients.prompt_span + coefficients.prompt.seconds(n, start))
            else:
                seconds += part * (coefficients.decode_span + coefficients.decode.seconds(n, start))
        whole = self._rows(n_whole) if n_whole else 0.0
        return seconds + whole + sum(part * (self._rows(n_whole + n) - whole) for n, part in in_part)

    def scheduling_seconds(self, n_spans: int) -> float:
        """CPU seconds that the engine itself takes for a step of so many requests."""
        return self.hardware.scheduling_step + n_spans * self.hardware.scheduling_span if n_spans else 0.0

    def transfer_seconds(self, link: str, n_bytes: float, operations: int = 1) -> float:
        """Seconds to move bytes over a link in so many operations. Raises ConfigError for a link that is not there."""
        found = self.hardware.links.get(link)
        if found is None:
            raise ConfigError(
                f"the hardware profile {self.hardware.name!r} has no link {link!r}: it has "
                f"{', '.join(sorted(self.hardware.links))}"
            )
        return operations * found.latency + n_bytes / found.bandwidth

    def flops(self, spans: Iterable[StepSpan]) -> float:
        """FLOPs of a step, counted as the engine's ledger does: every token through all linear layers."""
        shape = self.shape
        return sum(
            part * n * (shape.linear_flops + shape.attention_flops * (start + n / 2)) for n, start, _, part in spans
        )

    def _rows(self, tokens: int) -> float:
        """Straight between the two nearest known numbers of tokens, and beyond the last."""
        right = min(max(bisect_left(self._tokens, tokens), 1), len(self._tokens) - 1)
        left = right - 1
        share = (tokens - self._tokens[left]) / (self._tokens[right] - self._tokens[left])
        return self._seconds[left] + share * (self._seconds[right] - self._seconds[left])
