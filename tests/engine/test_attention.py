"""The torch runner against plain `transformers`: the same logits however a sequence is cut and wherever its KV lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from longturn.cache import Run, Runs
from longturn.engine.runner import plan
from longturn.engine.runner.contract import Span
from longturn.engine.runner.plan import SHORT_RUN
from longturn.engine.runner.pool import KVPool
from longturn.engine.runner.torch_runner import TorchRunner
from tests.engine.conftest import MISTRAL_WINDOW
from tests.tiny_model import VOCAB, Kind

SLOTS = 2000
PROMPT = 420
FAMILIES: tuple[Kind, ...] = get_args(Kind)
# Where the KV of a prompt may lie. Runs of at least SHORT_RUN slots are read in place, shorter ones are gathered.
LAYOUTS = {
    "one run": [(100, 100 + PROMPT)],
    "long runs": [(1000, 1200), (300, 300 + PROMPT - 200)],
    "short runs": [(at, at + 35) for at in range(1400, 560, -70)],
    "mixed": [(700, 710), (1000, 1000 + SHORT_RUN + 3), (20, 50), (60, 61), (400, 400 + PROMPT)],
    "single slots": [(at, at + 1) for at in range(1500, 600, -2)],
}

Compare = Callable[..., None]


def tokens(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.int32)


def runs(*pairs: tuple[int, int]) -> Runs:
    return Runs(Run(*pair) for pair in pairs)


def laid(layout: str, n: int = PROMPT) -> Runs:
    return runs(*LAYOUTS[layout]).slice(0, n)


def span(prompt: np.ndarray, start: int, stop: int, where: Runs, logits: bool = True) -> Span:
    return Span(prompt[start:stop], start, where.slice(0, stop), logits, prompt=stop - start > 1)


def runner_of(folder: Path, dtype: str = "float32", deterministic: bool = False) -> TorchRunner:
    runner = TorchRunner(folder, device="cpu", dtype=dtype, threads=1, deterministic=deterministic)
    runner.allocate(SLOTS, 16)
    # What nobody wrote must never be read.
    runner.pool.kv.fill_(float("nan"))
    return runner


@pytest.fixture(scope="module")
def plain(tiny: Callable[[Kind], Path]) -> Callable[[Kind, np.ndarray], Tensor]:
    """Logits of all positions by transformers' own eager attention."""
    models: dict[Kind, torch.nn.Module] = {}

    def logits(kind: Kind, prompt: np.ndarray) -> Tensor:
        if kind not in models:
            models[kind] = AutoModelForCausalLM.from_pretrained(
                tiny(kind), dtype=torch.float32, attn_implementation="eager"
            ).eval()
        with torch.inference_mode():
            return models[kind](input_ids=torch.from_numpy(prompt.astype(np.int64))[None], use_cache=False).logits[0]

    return logits


@pytest.fixture(params=["gathered", "merged"], autouse=True)
def scattered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in several runs: gathered while they are few, read run by run when they are many."""
    if request.param == "merged":
        monkeypatch.setattr(plan, "GATHERED_TOKENS", 0)


@pytest.fixture(params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def runner(tiny: Callable[[Kind], Path], kind: Kind) -> TorchRunner:
    return runner_of(tiny(kind))


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> None:
    scale = wanted.abs().max()
    assert (found - wanted).abs().max() < tolerance * scale


def chunked(runner: TorchRunner, prompt: np.ndarray, where: Runs, cuts: Sequence[int]) -> list[Tensor]:
    """The logits behind each chunk of a prompt that is cut at `cuts`."""
    edges = [0, *cuts, len(prompt)]
    return [runner.execute([span(prompt, a, b, where)])[0] for a, b in pairwise(edges)]


def test_windows_are_shorter_than_the_prompts(runner: TorchRunner, kind: Kind) -> None:
    windows = {
        "llama": None,
        "qwen2": None,
        "qwen3": None,
        "mistral": MISTRAL_WINDOW,
        "gemma2": 64,
        "gemma3": 64,
    }
    assert getattr(runner._config, "sliding_window", None) == windows[kind]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_prompt(runner: TorchRunner, plain: Compare, kind: Kind, layout: str) -> None:
    prompt = tokens(PROMPT)
    close(runner.execute([span(prompt, 0, PROMPT, laid(layout))]), plain(kind, prompt)[-1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunked_prefill_then_decode(runner: TorchRunner, plain: Compare, kind: Kind, layout: str) -> None:
    prompt = tokens(PROMPT, 1)
    wanted = plain(kind, prompt)
    # Chunks of one token among long ones; borders inside and at the edge of the windows; decode at the end.
    cuts = [1, 47, 48, 49, 64, 65, 130, 128 + 64, 193, 300, 401, *range(410, PROMPT)]
    found = chunked(runner, prompt, laid(layout), cuts)
    close(torch.stack(found), wanted[[cut - 1 for cut in (*cuts, PROMPT)]])


def test_decode_across_the_edge_of_the_window(runner: TorchRunner, plain: Compare, kind: Kind) -> None:
    prompt = tokens(90, 2)
    where = runs((1200, 1230), (40, 140))
    runner.execute([span(prompt, 0, 40, where, logits=False)])
    found = [runner.execute([span(prompt, at, at + 1, where)])[0] for at in range(40, 90)]
    close(torch.stack(found), plain(kind, prompt)[40:])


@pytest.mark.parametrize("shared", [40, SHORT_RUN - 1, SHORT_RUN, 350])
def test_requests_that_share_a_run(runner: TorchRunner, plain: Compare, kind: Kind, shared: int) -> None:
    prompts = [np.concatenate((tokens(shared, 3), tokens(20 + 7 * i, 4 + i))) for i in range(3)]
    places = [runs((0, shared), (500 + 250 * i, 700 + 250 * i)) for i in range(3)]
    runner.execute([span(prompts[0], 0, shared, places[0], logits=False)])
    for prompt, place in zip(prompts, places, strict=True):
        runner.execute([span(prompt, shared, len(prompt) - 2, place, logits=False)])
    for back in (2, 1):
        spans = [
            span(prompt, len(prompt) - back, len(prompt) - back + 1, place)
            for prompt, place in zip(prompts, places, strict=True)
        ]
        wanted = torch.stack([plain(kind, prompt)[-back] for prompt in prompts])
        close(runner.execute(spans), wanted)


def test_one_request_goes_on_where_another_ends(runner: TorchRunner, plain: Compare, kind: Kind) -> None:
    # Two pieces for two requests, though one has both and the other shares one of them.
    long = tokens(plan.TILE * 2 + 20, 3)
    short = np.concatenate((long[: plan.TILE], tokens(30, 4)))
    shared = (0, plan.TILE)
    pairs = [(long, runs(shared, (500, 900))), (short, runs(shared, (1000, 1100)))]
    for prompt, place in pairs:
        runner.execute([span(prompt, 0, len(prompt) - 1, place, logits=False)])
    found = runner.execute([span(prompt, len(prompt) - 1, len(prompt), place) for prompt, place in pairs])
    close(found, torch.stack([plain(kind, prompt)[-1] for prompt, _ in pairs]))


def test_prompts_and_answers_in_one_step(runner: TorchRunner, plain: Compare, kind: Kind) -> None:
    prompts = [tokens(n, n) for n in (300, 130, 66, 5)]
    places = [runs((0, 400)), runs((1000, 1100), (1300, 1400)), runs((500, 600)), runs((700, 710))]
    runner.execute([span(prompts[0], 0, 299, places[0], logits=False)])
    runner.execute([span(prompts[1], 0, 100, places[1], logits=False)])
    found = runner.execute(
        [
            span(prompts[2], 0, 40, places[2], logits=False),  # a prompt's first chunk, whose logits nobody wants
            span(prompts[0], 299, 300, places[0]),  # an answer
            span(prompts[1], 100, 130, places[1]),  # a prompt's last chunk
            span(prompts[3], 0, 5, places[3]),  # a short prompt, whole
        ]
    )
    close(found, torch.stack([plain(kind, prompts[i])[-1] for i in (0, 1, 3)]))
    close(runner.execute([span(prompts[2], 40, 66, places[2])]), plain(kind, prompts[2])[-1:])


def test_no_logits_when_nobody_wants_them(runner: TorchRunner) -> None:
    found = runner.execute([span(tokens(9), 0, 5, runs((0, 9)), logits=False)])
    assert found.shape == (0, VOCAB)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_results_do_not_depend_on_the_place(
    tiny: Callable[[Kind], Path], kind: Kind, dtype: str, plain: Compare
) -> None:
    runner = runner_of(tiny(kind), dtype, deterministic=True)
    prompt = tokens(PROMPT, 8)
    cuts = [128, 256, 384, *range(385, 390)]
    first, *others = [torch.stack(chunked(runner, prompt, laid(layout), cuts)) for layout in LAYOUTS]
    for other in others:
        assert torch.equal(first, other)
    if dtype == "float32":
        close(first, plain(kind, prompt)[[cut - 1 for cut in (*cuts, PROMPT)]])


@pytest.mark.parametrize("layout", ["one run", "mixed"])
def test_bfloat16_stays_close(tiny: Callable[[Kind], Path], kind: Kind, layout: str) -> None:
    """The fused and packed modules differ from the plain ones only in rounding."""
    prompt = tokens(PROMPT, 9)
    plain_model = AutoModelForCausalLM.from_pretrained(tiny(kind), dtype=torch.bfloat16, attn_implementation="eager")
    exact_model = AutoModelForCausalLM.from_pretrained(tiny(kind), dtype=torch.float32, attn_implementation="eager")
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.inference_mode():
        plain = plain_model.eval()(input_ids=ids, use_cache=False).logits[0].float()
        exact = exact_model.eval()(input_ids=ids, use_cache=False).logits[0]
    cuts = [1, 100, 300, *range(405, PROMPT)]
    found = torch.stack(chunked(runner_of(tiny(kind), "bfloat16"), prompt, laid(layout), cuts)).float()
    rows = [cut - 1 for cut in (*cuts, PROMPT)]
    # As far from the exact logits as the plain bf16 model is, give or take.
    usual = (plain - exact)[rows].pow(2).mean().sqrt()
    ours = (found - exact[rows]).pow(2).mean().sqrt()
    assert ours < 1.5 * usual
    assert usual < 0.1 * exact.std()


POOL_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def filled_pool(dtype: torch.dtype, slots: int = 64, page_size: int = 4) -> KVPool:
    pool = KVPool(3, 2, 5, slots, page_size, dtype, torch.device("cpu"))
    # Small whole numbers are the same in every dtype.
    pool.kv.copy_(torch.arange(pool.kv.numel()).remainder(251).view(pool.kv.shape))
    return pool


def by_token(pool: KVPool, where: Runs) -> Tensor:
    return torch.cat([pool.kv[:, :, run.start : run.stop] for run in where], dim=2)


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("source", [[(8, 20)], [(3, 5), (40, 47), (9, 12)], [(at, at + 1) for at in range(50, 26, -2)]])
def test_pages_travel_as_bytes(dtype: torch.dtype, source: list[tuple[int, int]]) -> None:
    pool, other = filled_pool(dtype), filled_pool(dtype)
    where = runs(*source)
    pages = pool.read(where)
    assert pages.dtype == np.uint8
    assert pages.shape == (3, pool.page_bytes)
    for skip in range(4):
        for n in (1, 3, 4, 5, 12 - skip):
            for target in (runs((30, 64)), runs((1, 2), (10, 15), (20, 60))):
                other.kv.fill_(-1)
                there = target.slice(0, n)
                other.write(there, list(pages), skip)
                assert torch.equal(by_token(other, there), by_token(pool, where)[:, :, skip : skip + n])
                # And nothing else was touched.
                assert int((other.kv[0, 0, :, 0, 0] != -1).sum()) == n


def test_a_page_read_is_a_copy() -> None:
    pool = filled_pool(torch.float32)
    pages = pool.read(runs((0, 8)))
    before = pages.copy()
    pool.kv.zero_()
    assert np.array_equal(pages, before)


def test_a_page_that_does_not_begin_at_a_whole_number_of_values_can_be_written() -> None:
    """Stores give views into their own memory, whose offsets are theirs."""
    pool, other = filled_pool(torch.float32), filled_pool(torch.float32)
    page = pool.read(runs((4, 8)))[0]
    block = np.zeros(pool.page_bytes + 3, np.uint8)
    block[3:] = page
    other.kv.zero_()
    other.write(runs((0, 4)), [block[3:]], 0)
    assert torch.equal(other.kv[:, :, :4], pool.kv[:, :, 4:8])
