"""What machine this is, and what it is run with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from longturn.engine.runner.torch_runner import TorchRunner


@dataclass(frozen=True)
class Machine:
    """title: of the device, for people; memory_bytes: of its memory."""

    title: str
    memory_bytes: float


def machine(runner: TorchRunner) -> Machine:
    """The device that a torch runner computes on."""
    import psutil
    import torch

    device = runner.device
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Machine(properties.name, float(properties.total_memory))
    return Machine(f"{_cpu()}, {os.cpu_count()} cores", float(psutil.virtual_memory().total))


def software(runner: TorchRunner) -> str:
    """Versions and settings that decide how fast it is."""
    import torch

    dtype = str(runner.dtype).removeprefix("torch.")
    return f"longturn {version('longturn')}, torch {version('torch')}, {dtype}, {torch.get_num_threads()} threads"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
