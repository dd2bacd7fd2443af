"""Weights of few bits: what they stand for, and that decode with them says what the model would say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longturn.cache import Run, Runs
from longturn.engine.models import resolve
from longturn.engine.runner.contract import Span
from longturn.engine.runner.int4 import MOST_ROWS
from longturn.engine.runner.levels import levels_of
from longturn.engine.runner.linear import PackedLinear
from longturn.engine.runner.native import Unavailable
from longturn.engine.runner.torch_runner import TorchRunner
from longturn.errors import ConfigError

has_onednn = torch.ops.mkldnn._is_mkldnn_bf16_supported()


@given(st.integers(0, 2**31), st.sampled_from([32, 64, 576]), st.floats(1e-6, 1e3), st.sampled_from([4, 8]))
@settings(max_examples=30)
def test_weights_are_met_to_half_a_step(seed: int, n_in: int, size: float, bits: int):
    weight = (torch.randn(48, n_in, generator=torch.Generator().manual_seed(seed)) * size).bfloat16()
    groups, found = weight.float().view(48, -1, 32), levels_of(weight, bits).meant.float().view(48, -1, 32)
    step = (groups.amax(-1) - groups.amin(-1)) / (2**bits - 1)
    # Scales, middles and results are rounded to bfloat16 beside.
    assert ((groups - found).abs().amax(-1) <= 0.5 * step + 2**-7 * groups.abs().amax(-1)).all()


def test_weights_on_a_grid_of_four_bits_are_kept():
    levels = torch.arange(16.0).repeat(16, 4)
    weight = (levels * 0.25 - 1).bfloat16()
    assert torch.equal(levels_of(weight, 4).meant, weight)


def test_weights_that_are_all_the_same_are_kept():
    weight = torch.full((16, 32), 0.5).bfloat16()
    assert torch.equal(levels_of(weight, 4).meant, weight)
    assert torch.equal(levels_of(weight * 0, 4).meant, weight * 0)


@pytest.mark.skipif(not has_onednn, reason="this CPU has no bf16 in oneDNN")
@pytest.mark.parametrize("operation", ["none", "swish", "add", "mul"])
@pytest.mark.parametrize("biased", [False, True])
def test_few_rows_and_many_compute_the_same(operation: str, biased: bool):
    torch.manual_seed(0)
    plain = nn.Linear(64, 96, bias=biased).bfloat16()
    linear = PackedLinear([plain], operation, bits=4)
    x = torch.randn(1, MOST_ROWS + 1, 64).bfloat16()
    other = torch.randn(1, MOST_ROWS + 1, 96).bfloat16() if operation in ("add", "mul") else None
    with torch.inference_mode():
        many = linear(x, other)
        few = linear(x[:, :MOST_ROWS], None if other is None else other[:, :MOST_ROWS].clone())
    torch.testing.assert_close(few, many[:, :MOST_ROWS], atol=0.03, rtol=0.03)


def test_the_demo_model_says_the_same():
    folder = resolve("demo").path
    logits = {}
    others = [("int4", False)] if has_onednn else []
    for weights, native in (("model", True), ("int4", True), ("int8", True), *others):
        runner = loaded(folder, weights, native)
        runner.allocate(256, 16)
        tokens = np.arange(1000, 1100, dtype=np.int32)
        runs = Runs([Run(0, 120)])
        runner.execute([Span(tokens, 0, runs.slice(0, 100), True, prompt=True)])
        logits[weights, native] = runner.execute([Span(tokens[:1], 100, runs.slice(0, 101), True, prompt=False)])[
            0
        ].float()
        assert native or not runner.same_bits
    plain = logits.pop(("model", True))
    for (weights, _), found in logits.items():
        assert nn.functional.cosine_similarity(plain, found, dim=0) > (0.99 if weights == "int4" else 0.999)
        assert not torch.equal(plain, found)


def loaded(folder: Path, weights: str, native: bool = True) -> TorchRunner:
    runner = TorchRunner(folder, device="cpu", dtype="bfloat16", weights=weights, native=native)
    if native and isinstance(runner.native, Unavailable):
        pytest.skip(f"no native kernels here: {runner.native}")
    return runner


def test_it_is_refused_where_it_would_do_nothing(tiny: Callable[[str], Path]):
    for weights in ("int4", "int8"):
        with pytest.raises(ConfigError, match="few bits"):
            TorchRunner(tiny("llama"), device="cpu", dtype="float32", weights=weights)
        with pytest.raises(ConfigError, match="few bits"):
            TorchRunner(tiny("gemma2"), device="cpu", dtype="bfloat16", weights=weights)
    with pytest.raises(ConfigError, match="native kernels" if has_onednn else "few bits"):
        TorchRunner(tiny("llama"), device="cpu", dtype="bfloat16", weights="int8", native=False)
