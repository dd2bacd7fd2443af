"""In bf16 on the CPU a token's KV and logits are the same to the bit, however its prompt was cut and where it lies.

So it is where the runner says so, which depends on the CPU; elsewhere there is nothing to test.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
from longturn.engine.runner.kernels import find_filling, partial
from longturn.engine.runner.linear import SMALL, PackedLinear, by_parts, common, parts_of
from longturn.engine.runner.rounding import PERIOD, paired, repeated, repeats
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

of_onednn = pytest.mark.skipif(
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


def check(folder: Path, vocab: int, cuts_to_try: Sequence[str] = tuple(CUTS), native: bool = True) -> None:
    runner = TorchRunner(folder, device="cpu", dtype="bfloat16", native=native)
    if not runner.same_bits:
        pytest.skip("the runner does not claim it on this CPU")
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


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_tiny_models(tiny: Callable[[str], Path], kind: str, native: bool) -> None:
    check(tiny(kind), 256, native=native)


@pytest.mark.model
def test_demo_model() -> None:
    check(resolve("demo").path, 49152, ["odd"])


def test_the_claim_is_made_where_it_held() -> None:
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip(
            "only on CPUs like those it was developed on, Intel's with AMX and AMD's without, it is known to hold"
        )
    assert find_filling(2, 16, torch.get_num_threads()) is not None
    for operation in ("none", "swish", "add", "mul"):
        assert PackedLinear([torch.nn.Linear(1536, 576).bfloat16()], operation).sizes


@of_onednn
def test_other_kinds_of_cpu(tiny: Callable[[str], Path]) -> None:
    """Without bf16 in the CPU, and with MKL's oldest products, other numbers of rows agree."""
    code = f"from tests.engine.test_bits import *; check(Path({str(tiny('qwen3'))!r}), 256, ['odd'], native=False)"
    kind = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "COMPATIBLE"}
    child = subprocess.run([sys.executable, "-c", code], env=os.environ | kind, capture_output=True, text=True)
    assert child.returncode == 0 or "Skipped: " in child.stderr, child.stderr


@of_onednn
@pytest.mark.parametrize("operation", ["none", "swish", "add", "mul"])
@pytest.mark.parametrize("n_in", [576, 1536])
def test_a_row_does_not_feel_the_others(n_in: int, operation: str) -> None:
    torch.manual_seed(0)
    linear = PackedLinear([torch.nn.Linear(n_in, n).bfloat16() for n in (384, 192)], operation)
    if not linear.sizes:
        pytest.skip("too few numbers of rows agree on this CPU, and the linear says so")
    x, other = torch.randn(1, 2100, n_in).bfloat16(), torch.randn(1, 2100, 576).bfloat16()

    def rows(start: int, stop: int) -> Tensor:
        result: Tensor = linear(x[:, start:stop], other[:, start:stop] if operation in ("add", "mul") else None)
        return result

    with torch.inference_mode():
        alone = torch.cat([rows(i, i + 1) for i in range(2100)], 1)
        for n in (2, 8, SMALL, SMALL + 1, 100, 513, 1024, 2100):
            assert torch.equal(rows(0, n), alone[:, :n])
        assert rows(0, 0).shape == (1, 0, 576)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_a_query_does_not_feel_the_others(kv_heads: int) -> None:
    filling = find_filling(kv_heads, 64, torch.get_num_threads())
    if filling is None:
        pytest.skip("no numbers of rows agree on this CPU, and the engine knows")
    torch.manual_seed(0)
    query, keys, values = (torch.randn(1, kv_heads, n, 64).bfloat16() for n in (800, 1280, 1280))
    mask = torch.zeros(1, 1, 1, 1280)
    mask[..., 1000:] = -torch.inf
    for seen in (None, mask):
        expected = partial(query, keys, values, 0.125, mask=seen, filling=filling)
        for n in (*range(1, 36), 63, 191, 193, 256, 257, 768, 769, 771):
            found = partial(query[:, :, :n], keys, values, 0.125, mask=seen, filling=filling)
            for a, b in zip(found, expected, strict=True):
                assert a.shape[2] == n
                assert torch.equal(a, b[:, :, :n])


def test_rows_are_filled_up_to_sizes_that_agree() -> None:
    x = torch.arange(100.0)[None, :, None]
    seen: list[int] = []

    def work(rows: Tensor, other: Tensor | None) -> Tensor:
        assert other is not None
        seen.append(rows.shape[1])
        return rows + other

    for n, parts in {0: [0], 1: [4], 3: [4], 4: [4], 5: [SMALL], 40: [64], 64: [64], 100: [64, 64]}.items():
        assert torch.equal(by_parts(work, frozenset((0, 4, SMALL, 64)), x[:, :n], x[:, :n]), 2 * x[:, :n])
        assert seen == parts
        seen.clear()
    assert common(frozenset((0, 4, SMALL, 64)), frozenset((0, SMALL, 64))) == {0, SMALL, 64}
    # Without a large size in common rows are not cut at all.
    assert common(frozenset((0, SMALL, 64)), frozenset((0, SMALL, 128))) == frozenset()
    by_parts(work, frozenset(), x, x)
    assert seen == [100]


@pytest.mark.parametrize("sizes", [(512,), (64, 128), (640, 1024, 2048)])
def test_parts_cover_all_rows(sizes: tuple[int, ...]) -> None:
    for n in range(SMALL + 1, 5000, 37):
        size, padded = parts_of(n, frozenset((0, SMALL, *sizes)))
        assert size in (SMALL, *sizes)
        assert padded >= n
        assert padded % size == 0
        assert padded - n < size


@pytest.mark.parametrize("n", [64, 577])
def test_paired_numbers_show_the_order_of_a_sum(n: int) -> None:
    left, right = paired(1, PERIOD, n), paired(-1, PERIOD, n)
    assert (left.double() @ right.double().T).abs().max() < 1e-9
    assert right.double().sum(1).abs().max() == 0
    products = (left[:, None].float() * right[None].float()).numpy()
    # One after the other, in float32, from the left and from the right.
    there, back = np.cumsum(products, -1)[..., -1], np.cumsum(products[..., ::-1], -1)[..., -1]
    assert np.mean(there != back) > 0.8


def test_repeated_rows() -> None:
    rows = torch.randn(PERIOD, 8)
    result = repeated(rows, 200)
    assert torch.equal(result[2 * PERIOD + 5], rows[5])
    assert repeats(result, rows)
    result[150, 3] += 1
    assert not repeats(result, rows)
