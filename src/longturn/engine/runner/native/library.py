"""Compiles the kernels for this very CPU when a model is first loaded, and finds them again after that.

It takes a second and gcc. Without it, or on a CPU that they are not for, torch's own kernels serve.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from longturn.engine.models import cache_directory

_SOURCES = (
    *("vectors.h", "sixteen_lanes.h", "eight_lanes.h", "tiles.h", "attention.h", "products.h", "attention.c", "few.c"),
    *("linear.h", "linear.c", "levels.c", "rows.c", "cores.h", "cores.c", "layer.c"),
)
OPTIONS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fPIC", "-fvisibility=hidden")
_NEEDED = {"avx2", "fma"}
_LONGEST_S = 120


class Unavailable(Exception):
    """Why there are no native kernels here."""


@cache
def compiled() -> ctypes.CDLL | Unavailable:
    """The compiled kernels, or what stands against them."""
    try:
        return _load()
    except Unavailable as reason:
        return reason
    except (OSError, subprocess.SubprocessError) as error:
        return Unavailable(f"compiling failed: {error}")


def _load() -> ctypes.CDLL:
    lacking = _NEEDED - _cpu_flags()
    if lacking:
        raise Unavailable(f"this CPU has no {', '.join(sorted(lacking))}")
    compiler = shutil.which("gcc")
    if compiler is None:
        raise Unavailable("no C compiler on the PATH: install gcc")
    openmp = openmp_of_torch()
    sources = {name: (files(__package__) / name).read_text(encoding="utf-8") for name in _SOURCES}
    # Another CPU or another torch gets its own.
    kind = "|".join((*sources.values(), *OPTIONS, str(openmp), *sorted(_cpu_flags())))
    place = cache_directory() / "native" / f"{hashlib.sha256(kind.encode()).hexdigest()[:24]}.so"
    if not place.is_file():
        _compile(compiler, sources, openmp, place)
    native = ctypes.CDLL(str(place))
    if not native.longturn_ready():
        raise Unavailable("the system does not let programs use the tiles of this CPU")
    return native


def _compile(compiler: str, sources: Mapping[str, str], openmp: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as name:
        folder = Path(name)
        for file, text in sources.items():
            (folder / file).write_text(text, encoding="utf-8")
        objects = []
        for file in sources:
            if file.endswith(".c"):
                objects.append(str(folder / f"{file}.o"))
                _run(compiler, *OPTIONS, "-c", str(folder / file), "-o", objects[-1])
        # With torch's threads: two sets of them would fight for the same cores.
        linked = folder / "kernels.so"
        _run(compiler, "-shared", "-Wl,--no-undefined", *objects, "-o", str(linked), str(openmp), "-lm")
        linked.rename(place)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[:300]}")


def openmp_of_torch() -> Path:
    """The OpenMP library that torch has loaded. Raises Unavailable when it has none."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    loaded = {line.split()[-1] for line in lines if "omp" in line.rpartition("/")[2]}
    for name in ("libgomp", "libiomp5", "libomp"):
        for path in sorted(loaded):
            if Path(path).name.startswith(name):
                return Path(path)
    raise Unavailable("torch runs without OpenMP here")


@cache
def _cpu_flags() -> frozenset[str]:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return frozenset()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
