"""What a runner keeps in memory, and the cores that its threads keep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from longturn.engine.runner.layers import SharedEmbedding
from longturn.engine.runner.native import Native, Unavailable, find
from longturn.engine.runner.torch_runner import TorchRunner
from tests.tiny_model import Kind, build_tiny_model

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


@on_linux
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_model_s_file_is_let_go(tmp_path: Path, kind: Kind) -> None:
    folder = build_tiny_model(tmp_path / kind, kind=kind)
    runner = TorchRunner(folder, device="cpu", dtype="bfloat16")
    if isinstance(runner.native, Unavailable) and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bf16 in oneDNN, and weights are used as they lie in the file")
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(folder) not in maps
    del runner  # it lived until here


def test_an_embedding_is_read_from_the_head(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "tied", kind="llama", tied=True)
    runner = TorchRunner(folder, device="cpu", dtype="bfloat16")
    if isinstance(runner.native, Unavailable):
        pytest.skip(f"no native kernels here: {runner.native}")
    shared = runner._model.get_input_embeddings()
    assert isinstance(shared, SharedEmbedding)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).get_input_embeddings()
    tokens = torch.tensor([[0, 5, 31, 32, 255], [7, 7, 64, 33, 200]])
    assert torch.equal(shared(tokens), plain(tokens))


@pytest.mark.parametrize("n_out", [64, 70, 33])
def test_rows_of_a_packed_weight(n_out: int) -> None:
    native = find(64)
    if not isinstance(native, Native):
        pytest.skip(f"no native kernels here: {native}")
    weight = torch.randn(n_out, 96).bfloat16()
    linear = native.linear(weight, None, "none")
    assert linear is not None
    at = torch.randint(0, n_out, (3, 50))
    assert torch.equal(linear.rows(at), weight[at])


# -- cores -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from longturn.cache import Run, Runs
from longturn.engine.runner.contract import Span
from longturn.engine.runner.torch_runner import TorchRunner
runner = TorchRunner(Path(sys.argv[1]), device="cpu", dtype="bfloat16", threads=int(sys.argv[2]))
runner.allocate(1000, 16)
before = os.sched_getaffinity(0)
for _ in range(3):
    runner.execute([Span(np.zeros(200, np.int32), 0, Runs([Run(0, 200)]), True, prompt=True)])
assert os.sched_getaffinity(0) == before
masks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
print(runner.shape.layers > 1, sorted(next(iter(mask)) for mask in masks if len(mask) < len(before)))
"""


@on_linux
def test_every_thread_has_a_core_if_there_are_as_many(llama: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core is all there is")

    def held(threads: int) -> tuple[str, str]:
        command = [sys.executable, "-c", PROGRAM, str(llama), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        native, _, bound = done.stdout.strip().partition(" ")
        return native, bound

    native, bound = held(len(cores))
    if native != "True":
        pytest.skip("no native kernels here")
    assert bound == str(cores[1:])
    # Others may need the rest.
    assert held(len(cores) - 1) == ("True", "[]")
