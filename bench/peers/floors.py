"""What this machine could reach at best: FLOPs over the measured rate of its matrix products, bytes over its bandwidth.

Measured in this process, with the model's own shapes; steps are modelled by `longturn.engine.cost`, at full efficiency.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from longturn.engine.cost.cost_model import CostModel, StepSpan
from longturn.engine.cost.hardware_profile import HardwareProfile
from longturn.engine.cost.load import load_model_profile
from longturn.engine.cost.model_profile import ModelProfile

ROWS = 2048
_TRIES = 5


@dataclass(frozen=True)
class Floors:
    """flops: of matrix products, per second; bandwidth: bytes read per second."""

    flops: float
    bandwidth: float
    cost: CostModel

    def prefill(self, new: int, start: int = 0) -> float:
        """Seconds for a prompt's `new` tokens behind `start` cached ones, each of whose KV is moved once."""
        return self.cost.model_seconds([StepSpan(new, start, True)]) + self.moving(start)

    def decode(self, batch: int, context: int) -> float:
        """Tokens per second of all streams."""
        return batch / self.cost.model_seconds([StepSpan(1, context, False)] * batch)

    def moving(self, tokens: int) -> float:
        """Seconds to read the KV of so many tokens."""
        return tokens * self.cost.shape.token_bytes / self.bandwidth


def measure(model: Path) -> Floors:
    """Takes some seconds; the best of several tries, since what disturbs only ever slows down."""
    profile = load_model_profile(model)
    # What multiplies bfloat16 slowly is better off with float32.
    flops = max(_matmul_rate(profile, dtype) for dtype in (torch.bfloat16, torch.float32))
    bandwidth = _bandwidth(int(profile.parameters * profile.weight_bytes))
    hardware = HardwareProfile(
        name="floor",
        title="this machine, as measured",
        flops={"bf16": flops},
        memory_bytes=1e15,
        memory_bandwidth=bandwidth,
        compute_efficiency=1,
        attention_efficiency=1,
        memory_efficiency=1,
        step_seconds=0,
        scheduling_step=0,
        scheduling_span=0,
        request_seconds=0,
        links={},
        sources={},
    )
    return Floors(flops, bandwidth, CostModel(profile, hardware, 1))


def _matmul_rate(profile: ModelProfile, dtype: torch.dtype) -> float:
    """FLOPs per second of one layer's linear parts over ROWS tokens."""
    hidden, width, kv = profile.hidden, profile.intermediate, profile.kv_heads * profile.head_dim
    outs = ((hidden, hidden + 2 * kv), (hidden, hidden), (hidden, 2 * width), (width, hidden))
    weights = [torch.randn(columns, rows, dtype=dtype) for rows, columns in outs]
    inputs = {rows: torch.randn(ROWS, rows, dtype=dtype) for rows, _ in outs}

    def layer() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    return 2.0 * ROWS * sum(weight.numel() for weight in weights) / _best(layer, inner=20)


def _bandwidth(n_bytes: int) -> float:
    """Bytes read per second from an array as large as the weights, so that caches help as much as they help a model."""
    array = torch.ones(n_bytes // 4)
    readers: Iterable[Callable[[], object]] = (lambda: torch.dot(array, array), array.sum, array.max)
    return n_bytes / min(_best(read, inner=3) for read in readers)


def _best(work: Callable[[], object], inner: int) -> float:
    """Seconds of one call, of the fastest of several loops."""
    work()
    taken = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        for _ in range(inner):
            work()
        taken.append((time.perf_counter() - began) / inner)
    return min(taken)
