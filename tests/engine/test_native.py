"""The native kernels against plain arithmetic in float32, as compiled here, without tiles, with emulated ones, and with
vectors of eight lanes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from longturn.cache import Run, Runs
from longturn.engine.runner.contract import Span
from longturn.engine.runner.levels import levels_of
from longturn.engine.runner.native import Layout, Native, Unavailable, find, library
from longturn.engine.runner.native.calls import OPERATIONS

SHAPES = [(9, 3, 64), (4, 2, 16), (8, 2, 128), (2, 2, 80), (3, 1, 8), (4, 1, 256), (8, 1, 40), (12, 1, 32)]


WITHOUT_TILES = ("-mno-amx-bf16", "-mno-amx-tile", "-mno-amx-int8")
WITH_TILES = ("-include", str(Path(__file__).with_name("emulated_tiles.h")))
# AVX-512 where the CPU has none.
WITH_LANES = ("-mno-avx512f", "-include", str(Path(__file__).with_name("emulated_lanes.h")))
# Outputs of a panel with eight lanes.
EIGHT_LANES_COLUMNS = 16
EIGHT_LANES = (*WITHOUT_TILES, "-mno-avx512f")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are that were compiled with other options."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(
    params=[(), WITHOUT_TILES, WITH_TILES, EIGHT_LANES],
    ids=["as compiled here", "without tiles", "with tiles", "eight lanes"],
)
def options(request: pytest.FixtureRequest, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the kernels are compiled with."""
    more = request.param
    if more and native(64).columns == EIGHT_LANES_COLUMNS:
        if more == EIGHT_LANES:
            pytest.skip("this CPU has eight lanes: these are the kernels as compiled here")
        more = (*WITH_LANES, *more)
    if more:
        monkeypatch.setattr(library, "OPTIONS", (*library.OPTIONS, *more))
        monkeypatch.setenv("LONGTURN_CACHE", str(compiled))
        library.compiled.cache_clear()
        # Compiled otherwise they must be there, or these tests would be skipped for what they are to find.
        assert isinstance(found := find(64), Native), found
    yield
    if more:
        library.compiled.cache_clear()


def native(dim: int) -> Native:
    found = find(dim)
    if isinstance(found, Unavailable):
        pytest.skip(f"no native kernels here: {found}")
    return found


def span(start: int, n: int, *runs: tuple[int, int]) -> Span:
    return Span(np.zeros(n, np.int32), start, Runs(Run(*run) for run in runs), True, prompt=n > 1)


SPANS = [
    span(0, 7, (3, 10)),
    span(500, 300, (100, 250), (1000, 1700)),
    span(127, 1, (2000, 2128)),
    span(128, 1, (2772, 2773), (2200, 2400)),
    span(50, 500, *((at, at + 3) for at in range(2890, 1200, -7))),
    span(63, 2, (0, 65)),
]
ROWS = sum(len(one.tokens) for one in SPANS)


def plainly(query: Tensor, pool: Tensor, spans: Sequence[Span]) -> Tensor:
    """Softmax attention written out, in float32."""
    parts, row, group = [], 0, query.shape[1] // pool.shape[2]
    for one in spans:
        n, m = len(one.tokens), one.start + len(one.tokens)
        slots = np.concatenate([np.arange(run.start, run.stop) for run in one.runs.slice(0, m)])
        keys, values = (side[torch.from_numpy(slots)].float().repeat_interleave(group, 1) for side in pool)
        scores = torch.einsum("qhd,khd->hqk", query[row : row + n].float(), keys) * query.shape[-1] ** -0.5
        scores.masked_fill_(torch.arange(m) > torch.arange(one.start, m)[:, None], -torch.inf)
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        row += n
    return torch.cat(parts)


def random_pool(kv_heads: int, dim: int) -> Tensor:
    pool = torch.randn(2, 3000, kv_heads, dim).bfloat16()
    pool[:, 2900:] = float("nan")  # what nobody wrote must never be read
    return pool


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.usefixtures("options")
def test_attention(heads: int, kv_heads: int, dim: int) -> None:
    torch.manual_seed(0)
    kernels, pool = native(dim), random_pool(kv_heads, dim)
    query = torch.randn(ROWS, heads, dim).bfloat16()
    found = kernels.attend(Layout(SPANS), query, pool, dim**-0.5)
    torch.testing.assert_close(found.float(), plainly(query, pool, SPANS), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.usefixtures("options")
def test_the_bits_of_a_row_are_its_own(heads: int, kv_heads: int, dim: int) -> None:
    """Sharp scores, so that the greatest changes late: then every row beside could be felt."""
    torch.manual_seed(1)
    kernels, pool = native(dim), random_pool(kv_heads, dim)
    query = torch.randn(600, heads, dim).bfloat16() * 8
    whole = kernels.attend(Layout([span(0, 600, (0, 600))]), query, pool, dim**-0.5)
    for start, stop in ((0, 1), (1, 90), (90, 91), (91, 255), (255, 257), (257, 598), (598, 599), (599, 600)):
        where = [(0, min(stop, 101)), (101, 600)] if stop > 101 else [(0, 101)]
        beside = span(400, 3, (1000, 1500))
        both = torch.cat((torch.randn(3, heads, dim).bfloat16(), query[start:stop]))
        found = kernels.attend(Layout([beside, span(start, stop - start, *where)]), both, pool, dim**-0.5)
        assert torch.equal(found[3:], whole[start:stop])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_rotary(heads: int, kv_heads: int, dim: int) -> None:
    torch.manual_seed(2)
    kernels, pool = native(dim), torch.zeros(2, 50, kv_heads, dim).bfloat16()
    n, half = 20, dim // 2
    qkv = torch.randn(n, heads + 2 * kv_heads, dim).bfloat16()
    angles = torch.rand(n, 1, half) * 6
    cos, sin = (torch.cat((x, x), -1).bfloat16() for x in (angles.cos(), angles.sin()))
    signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
    slots = torch.randperm(50)[:n]
    query = kernels.rotate(qkv, heads, cos, signed, pool, slots)
    x = qkv.float()
    turned = x * cos.float() + torch.cat((x[..., half:], x[..., :half]), -1) * signed.float()
    torch.testing.assert_close(query.float(), turned[:, :heads], atol=0.02, rtol=0.01)
    torch.testing.assert_close(pool[0, slots].float(), turned[:, heads : heads + kv_heads], atol=0.02, rtol=0.01)
    assert torch.equal(pool[1, slots], qkv[:, heads + kv_heads :])
    untouched = [slot for slot in range(50) if slot not in set(slots.tolist())]
    assert not pool[:, untouched].any()


@pytest.mark.parametrize("width", [8, 576, 1000])
def test_norm(width: int) -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(1, 30, width).bfloat16(), torch.rand(width)
    found = native(64).norm(x, weight, 1e-5)
    plain = torch.nn.functional.rms_norm(x.float(), (width,), weight, 1e-5)
    torch.testing.assert_close(found.float(), plain, atol=0.01, rtol=0.01)


def test_a_compiler_that_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native(64)
    monkeypatch.setenv("LONGTURN_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "OPTIONS", ("--no-such-option",))
    library.compiled.cache_clear()
    try:
        assert "no-such-option" in str(find(64))
        monkeypatch.setenv("PATH", "")
        library.compiled.cache_clear()
        assert "install gcc" in str(find(64))
    finally:
        library.compiled.cache_clear()


def test_linears_they_cannot_compute_need_those_of_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    native(64)
    for onednn in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda there=onednn: there)
        assert isinstance(find(64, [576, 64]), Native)
        assert isinstance(find(64, [576, 40]), Native) is onednn
    assert "40 inputs" in str(find(64, [576, 40]))


def test_several_processes_compile_at_once(tmp_path: Path) -> None:
    native(64)
    code = "import torch; from longturn.engine.runner.native import find; print(type(find(64)).__name__)"
    env = os.environ | {"LONGTURN_CACHE": str(tmp_path)}
    several = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    assert [one.communicate()[0].decode().strip() for one in several] == ["Native", "Native"]
    assert [path.suffix for path in (tmp_path / "native").iterdir()] == [".so"]


def by_hand(operation: str, y: Tensor, other: Tensor) -> Tensor:
    """What an operation makes of the results of a linear."""
    if operation == "gated":
        gate, up = y.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    return y + other if operation == "add" else y


@pytest.mark.usefixtures("options")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("n_out", "n_in"), [(96, 64), (50, 32), (576, 1536)])
def test_linear(operation: str, n_out: int, n_in: int) -> None:
    torch.manual_seed(4)
    weight, bias = torch.randn(n_out, n_in).bfloat16() * n_in**-0.5, torch.randn(n_out).bfloat16()
    linear = native(64).linear(weight, bias, "none" if operation == "wide" else operation)
    assert linear is not None
    if operation == "wide":
        linear = linear.wide()
    x, other = torch.randn(1, 300, n_in).bfloat16(), torch.randn(1, 300, n_out).bfloat16()
    beside = other if operation == "add" else None
    whole = linear(x, beside)
    plain = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    torch.testing.assert_close(whole.float(), by_hand(operation, plain, other.float()), atol=0.03, rtol=0.02)
    for start, stop in ((0, 1), (3, 8), (5, 21), (40, 73), (44, 299)):
        part = linear(x[:, start:stop], None if beside is None else beside[:, start:stop])
        assert torch.equal(part, whole[:, start:stop])
    assert not linear(x, beside).isnan().any()
    extreme = linear(x * 1e4, beside)
    assert not extreme.isnan().any()


def test_threads_are_as_many_as_at_its_making() -> None:
    """Whatever thread calls it, and whatever torch was told since: its working memory is for so many."""
    torch.manual_seed(5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        kernels = native(64)
        torch.set_num_threads(2)
        pool, query = random_pool(3, 64), torch.randn(ROWS, 9, 64).bfloat16()
        with ThreadPoolExecutor(1) as another:
            found = another.submit(kernels.attend, Layout(SPANS), query, pool, 0.125).result()
        torch.testing.assert_close(found.float(), plainly(query, pool, SPANS), atol=0.02, rtol=0.02)
        assert kernels.threads == 1
        assert len(kernels.rooms) == kernels.library.longturn_room(64)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("options")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("n_out", "n_in"), [(96, 64), (50, 32), (576, 1536)])
def test_linear_of_few_bits(bits: int, operation: str, n_out: int, n_in: int) -> None:
    """Inputs are rounded to eight bits: the sum may be off by that. Rows are their own without tiles."""
    torch.manual_seed(6)
    weight, bias = torch.randn(n_out, n_in).bfloat16() * n_in**-0.5, torch.randn(n_out).bfloat16()
    linear = native(64).linear(weight, bias, "none" if operation == "wide" else operation, bits)
    assert linear is not None
    if operation == "wide":
        linear = linear.wide()
    x, other = torch.randn(1, 300, n_in).bfloat16(), torch.randn(1, 300, n_out).bfloat16()
    beside = other if operation == "add" else None
    plain = torch.nn.functional.linear(x.float(), levels_of(weight, bits).meant.float(), bias.float())
    whole = linear(x, beside)
    torch.testing.assert_close(whole.float(), by_hand(operation, plain, other.float()), atol=0.08, rtol=0.03)
    for start, stop in ((0, 1), (3, 8), (5, 21), (40, 73), (44, 299)):
        part = linear(x[:, start:stop], None if beside is None else beside[:, start:stop])
        torch.testing.assert_close(part.float(), whole[:, start:stop].float(), atol=0.08, rtol=0.03)
        assert torch.equal(part, whole[:, start:stop]) or not linear.same_bits
    broken = x.clone()
    broken[0, 7, 3] = float("nan")
    found = linear(broken[:, :9], None if beside is None else beside[:, :9])
    assert found[0, 7].isnan().all()
    assert torch.equal(found[0, 6], linear(x[:, :9], None if beside is None else beside[:, :9])[0, 6])
