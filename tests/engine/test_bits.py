"""In bf16 on the CPU a token's KV and logits are the same to the bit, however its prompt was cut and where it lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from longturn.cache import Run, Runs
from longturn.engine.models import resolve
from longturn.engine.runner.contract import Span
from longturn.engine.runner.linear import SMALL, PackedLinear, parts_of
from longturn.engine.runner.torch_runner import TorchRunner

N, DECODED = 1500, 20
ONE_RUN = Runs([Run(0, N + DECODED)])
SCATTERED = Runs([Run(9000, 9700), Run(4000, 4013), Run(6000, 8000)])
CUTS = {
    "two": [1024],
    "almost all cached": [N - 1],
    "odd": [50, 100, 299, 300, 301, 900, N - 2],
    "tiles": [256, 512, 1280],
}

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bf16 in oneDNN"
)


def computed(runner: TorchRunner, tokens: np.ndarray, cuts: Sequence[int], runs: Runs) -> tuple[Tensor, Tensor]:
    """All logits from the end of the prompt on, and the KV in token order."""
    runner.pool.kv.fill_(float("nan"))
    logits = []
    for a, b in pairwise([0, *cuts, N]):
        last = runner.execute([Span(tokens[a:b], a, runs.slice(0, b), b == N, prompt=True)])
    logits.append(last[0])
    for at in range(N, N + DECODED):
        logits.append(runner.execute([Span(tokens[at : at + 1], at, runs.slice(0, at + 1), True, prompt=False)])[0])
    where = runs.slice(0, N + DECODED)
    return torch.stack(logits), torch.cat([runner.pool.kv[:, :, run.start : run.stop] for run in where], 2)


def check(folder: Path, vocab: int, cuts_to_try: Sequence[str] = tuple(CUTS)) -> None:
    runner = TorchRunner(folder, device="cpu", dtype="bfloat16")
    runner.allocate(10_000, 16)
    tokens = np.random.default_rng(0).integers(0, vocab, N + DECODED, dtype=np.int32)
    logits, kv = computed(runner, tokens, [], ONE_RUN)
    for cuts in (CUTS[name] for name in cuts_to_try):
        for runs in (ONE_RUN, SCATTERED):
            found_logits, found_kv = computed(runner, tokens, cuts, runs)
            assert torch.equal(found_kv.view(torch.int16), kv.view(torch.int16))
            assert torch.equal(found_logits, logits)
    # Nor does it matter whether a token was generated or came with a prompt.
    runner.execute([Span(tokens, 0, ONE_RUN, True, prompt=True)])
    assert torch.equal(runner.pool.kv[:, :, : N + DECODED].view(torch.int16), kv.view(torch.int16))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_tiny_models(tiny: Callable[[str], Path], kind: str) -> None:
    check(tiny(kind), 256)


@pytest.mark.model
def test_demo_model() -> None:
    check(resolve("demo").path, 49152, ["odd"])


def test_a_row_does_not_feel_the_others() -> None:
    torch.manual_seed(0)
    linear = PackedLinear([torch.nn.Linear(576, 960).bfloat16(), torch.nn.Linear(576, 192).bfloat16()])
    x, other = torch.randn(1, 2100, 576).bfloat16(), torch.randn(1, 2100, 1152).bfloat16()
    with torch.inference_mode():
        alone = torch.cat([linear(x[:, i : i + 1]) for i in range(2100)], 1)
        summed = torch.cat([linear.then(x[:, i : i + 1], "add", other[:, i : i + 1]) for i in range(2100)], 1)
        for n in (2, 8, SMALL, SMALL + 1, 100, 513, 1024, 2100):
            assert torch.equal(linear(x[:, :n]), alone[:, :n])
            assert torch.equal(linear.then(x[:, :n], "add", other[:, :n]), summed[:, :n])


@pytest.mark.parametrize("sizes", [(512,), (64, 128), (640, 1024, 2048)])
def test_parts_cover_all_rows(sizes: tuple[int, ...]) -> None:
    for n in range(SMALL + 1, 5000, 37):
        size, padded = parts_of(n, sizes)
        assert size in (SMALL, *sizes)
        assert padded >= n
        assert padded % size == 0
        assert padded - n < size
