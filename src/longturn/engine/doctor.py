"""Is this machine set up, and does a hit give the same answer as a miss? The checks of `longturn doctor`."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from longturn.engine.models import LocalModel, cache_directory, resolve
from longturn.engine.options import GIB, EngineOptions
from longturn.errors import LongturnError, ModelError

Progress = Callable[[str], None]
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True)
class Check:
    """What one check found. figures: numbers and names for programs; `detail` says the same to people."""

    name: str
    ok: bool
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The check as one flat JSON object."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, **self.figures}


def examine(
    model: str = "demo",
    *,
    device: str = "auto",
    dtype: str | None = None,
    deterministic_only: bool = False,
    progress: Progress = lambda message: None,
) -> Iterator[Check]:
    """Check the set-up, then hit versus miss in both modes; each check comes when it is done.

    dtype: of both modes; without it the default mode runs in float32, where rounding is too small to change an answer,
    and the deterministic mode in the model's usual 16 bits. What cannot run after an earlier failure is left out.
    """
    blocked = False
    for check in _set_up(model, device, progress):
        blocked = blocked or not check.ok
        yield check
    if blocked:
        return
    # Only here, because it imports torch, and whether that is possible has just been checked.
    from longturn.engine.doctor_hits import hit_versus_miss

    modes = [True] if deterministic_only else [False, True]
    for deterministic in modes:
        name = "deterministic" if deterministic else "default"
        try:
            with tempfile.TemporaryDirectory(prefix="longturn-doctor-") as folder:
                yield from hit_versus_miss(
                    name,
                    EngineOptions(
                        model=model,
                        device=device,
                        dtype=dtype or ("auto" if deterministic else "float32"),
                        deterministic=deterministic,
                        device_tokens=4096,
                        host_bytes=GIB,
                        disk_bytes=GIB,
                        disk_dir=Path(folder),
                    ),
                    progress,
                )
        except LongturnError as error:
            yield Check(f"{name} mode", False, str(error))


def _set_up(model: str, device: str, progress: Progress) -> Iterator[Check]:
    yield Check("python", True, f"Python {platform.python_version()} on {platform.platform()}")
    packages = _packages()
    yield packages
    if not packages.ok:
        return
    yield _device(device)
    yield _kernels(device)
    yield _threads()
    yield _cache_directory()
    try:
        found = resolve(model, progress=progress)
    except ModelError as error:
        yield Check("model", False, str(error))
        return
    yield Check("model", True, f"{found.name} in {found.path}", {"fingerprint": found.fingerprint})
    yield _memory(found)


def _packages() -> Check:
    found: dict[str, str] = {}
    try:
        for name in PACKAGES:
            found[name] = version(name)
            import_module(name)
    except (PackageNotFoundError, ImportError, OSError) as error:
        return Check("packages", False, f"{error}: pip install 'longturn[engine]'", {"versions": found})
    return Check("packages", True, ", ".join(f"{name} {number}" for name, number in found.items()), {"versions": found})


def _devices() -> list[str]:
    """What torch can compute on, what it would choose first."""
    import torch

    if torch.accelerator.is_available():
        return [torch.accelerator.current_accelerator().type, "cpu"]  # type: ignore[union-attr]
    return ["cpu"]


def _device(wanted: str) -> Check:
    seen = _devices()
    figures = {"devices": seen}
    if wanted not in ("auto", *seen):
        return Check("device", False, f"torch sees no {wanted} device here: use --device {seen[0]}", figures)
    chosen = seen[0] if wanted == "auto" else wanted
    return Check("device", True, f"{chosen} (torch sees {', '.join(seen)})", figures)


def _kernels(wanted: str) -> Check:
    """Slower kernels are no failure."""
    import torch

    from longturn.engine.runner.native import Unavailable, find

    found = find(64)
    if isinstance(found, Unavailable):
        detail = f"torch's alone ({found})"
        on_cpu = wanted == "cpu" or _devices() == ["cpu"]
        if on_cpu and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            detail += "; on this CPU they are slow in bfloat16: serve with --dtype float32"
        return Check("kernels", True, detail, {"native": False})
    return Check("kernels", True, "native ones for this CPU in bfloat16", {"native": True})


def _threads() -> Check:
    cores, load = os.cpu_count() or 1, psutil.getloadavg()[0]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    detail = f"{usable} of {cores} cores, load {load:.1f}"
    if usable < cores:
        detail += f"; serve with --threads {usable}, or the model's threads wait for each other"
    elif load > cores / 2:
        detail += "; the machine is busy: times will be longer than they need be"
    return Check("threads", True, detail, {"cores": cores, "usable_cores": usable, "load": load})


def _cache_directory() -> Check:
    folder = cache_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("cache directory", False, f"{error}: set LONGTURN_CACHE to a folder that can be written")
    detail = f"{folder} can be written, {free / GIB:.1f} GiB free"
    if free < GIB:
        return Check("cache directory", False, f"{detail}: make room for 1 GiB, or set LONGTURN_CACHE", {"free": free})
    return Check("cache directory", True, detail, {"free": free})


def _memory(model: LocalModel) -> Check:
    available = psutil.virtual_memory().available
    # The test in float32 takes twice the 16-bit weights, and for a moment, while they are loaded, once more.
    needed = 3 * sum(path.stat().st_size for path in model.path.glob("*.safetensors"))
    detail = f"{available / GIB:.1f} GiB available, {needed / GIB:.1f} GiB needed"
    if available < needed:
        detail += ": free some, or take a smaller --model"
    return Check("memory", available >= needed, detail, {"available": available, "needed": needed})
