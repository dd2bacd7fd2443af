"""Tokens of a prompt that get through some layers in each step: the same answers as through all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longturn.cache import Run, Runs
from longturn.engine.models import resolve
from longturn.engine.runner.contract import Passage, Span
from longturn.engine.runner.torch_runner import TorchRunner
from tests.engine.rig import Asked, Rig, random_tokens, rig

CACHED, NEW = 150, 100
HERE, THERE, BESIDE = Runs([Run(0, 250)]), Runs([Run(1000, 1250)]), Runs([Run(2000, 2100)])


def check(folder: Path) -> None:
    """Every way through the layers, with and without a token beside, leaves the same KV and logits."""
    runner = TorchRunner(folder, device="cpu", dtype="bfloat16")
    layers = runner.shape.layers
    if layers == 1:
        pytest.skip("this runner computes all layers at once")
    runner.allocate(4096, 16)
    tokens = np.random.default_rng(0).integers(3, runner.shape.vocab_size, CACHED + NEW, dtype=np.int32)
    before, rest = tokens[:CACHED], tokens[CACHED:]
    runner.execute([Span(before, 0, HERE, False, prompt=True)])
    expected = runner.execute([Span(rest, CACHED, HERE, True, prompt=True)])
    alone = runner.execute([Span(tokens[:1], 0, BESIDE, True, prompt=False)])
    for stops in ([layers], list(range(1, layers + 1)), [1, layers], [layers - 1, layers]):
        runner.pool.kv[:, :, 1000:1250].fill_(float("nan"))
        runner.execute([Span(before, 0, THERE, False, prompt=True)])
        passage = Passage(NEW)
        for number, until in enumerate(stops):
            last = until == layers
            single = [Span(tokens[:1], 0, BESIDE, True, prompt=False)] * (number % 2)
            found = runner.execute([*single, Span(rest, CACHED, THERE, last, True, passage, until)])
            assert (passage.layer, passage.state is None) == (until, last)
            assert len(found) == len(single) + last
            if single:
                assert torch.equal(found[:1], alone)
        assert torch.equal(found[-1:], expected)
        assert torch.equal(runner.pool.kv[:, :, 1000:1250], runner.pool.kv[:, :, :250])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_tiny_models(tiny: Callable[[str], Path], kind: str) -> None:
    check(tiny(kind))


@pytest.mark.model
def test_demo_model() -> None:
    check(resolve("demo").path)


def test_a_model_whose_attention_is_windowed_is_computed_at_once(tiny: Callable[[str], Path]) -> None:
    assert TorchRunner(tiny("mistral"), device="cpu", dtype="bfloat16").shape.layers == 1


# -- in the engine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def one(llama: Path) -> Iterator[Rig]:
    """An engine on whose clock no step takes any time, so that prompts get as little of each as can be."""
    with rig(llama, dtype="bfloat16", device_tokens=1200, chunk_tokens=512) as one:
        if one.runner.shape.layers == 1:
            pytest.skip("this runner computes all layers at once")
        one.stop_the_clock()
        yield one


def on_the_way(one: Rig, asked: Asked) -> bool:
    return any(s.passage is not None and s.passage.layer for s in one.scheduler.running if s.request is asked.request)


def half_way(one: Rig) -> tuple[Asked, Asked]:
    """A stream, and a prompt that has got through some layers beside it."""
    stream = one.submit(random_tokens(10, 1), 80)
    one.step(3)
    asked = one.submit(random_tokens(400, 2), 4)
    while not on_the_way(one, asked):
        one.step()
    return stream, asked


def spans_of(one: Rig) -> list[Span]:
    """What the runner is asked for from now on."""
    spans: list[Span] = []
    execute = one.runner.execute

    def watched(step: list[Span]) -> Any:
        spans.extend(step)
        return execute(step)

    one.runner.execute = watched
    return spans


def answer(llama: Path, prompt: list[int], n: int) -> list[int]:
    with rig(llama, dtype="bfloat16") as alone:
        asked = alone.submit(prompt, n)
        alone.run(asked)
        return asked.tokens


def test_a_prompt_beside_a_stream(one: Rig, llama: Path) -> None:
    stream = one.submit(random_tokens(10, 1), 60)
    one.step(3)
    spans = spans_of(one)
    prompts = [random_tokens(n, n) for n in (400, 30, 130)]
    asked = [one.submit(prompt, 6) for prompt in prompts]
    one.run(stream, *asked)
    one.idle()
    assert sum(span.passage is not None for span in spans) >= 14
    assert stream.tokens == answer(llama, stream.prompt, 60)
    for each in asked:
        assert each.tokens == answer(llama, each.prompt, 6)
    # The whole of every prompt is counted once.
    assert one.engine.counters.tokens == sum(len(each.prompt) + len(each.tokens) - 1 for each in (stream, *asked))
    shape = one.runner.shape
    for each in asked:
        n = len(each.prompt) + 5
        flops = n * (shape.linear_flops + shape.attention_flops * n / 2)
        assert each.line.resources.device_flops == pytest.approx(flops)


def test_a_stream_that_ends_meanwhile(one: Rig, llama: Path) -> None:
    stream, asked = half_way(one)
    one.engine.cancel(stream.request.id)
    one.run(asked)
    assert asked.tokens == answer(llama, asked.prompt, 4)


def test_a_prompt_that_is_cancelled_on_its_way(one: Rig, llama: Path) -> None:
    stream, asked = half_way(one)
    one.engine.cancel(asked.request.id)
    assert asked.reason == "cancelled"
    # Nothing of what was half computed is found by the next one.
    again = one.submit(asked.prompt, 4)
    one.run(stream, again)
    one.idle()
    assert again.tokens == answer(llama, asked.prompt, 4)
    assert stream.tokens == answer(llama, stream.prompt, 80)


def test_a_prompt_that_is_preempted_on_its_way(one: Rig, llama: Path) -> None:
    stream, asked = half_way(one)
    one.scheduler._preempt(next(s for s in one.scheduler.running if s.request is asked.request))
    assert not on_the_way(one, asked)
    one.run(stream, asked)
    one.idle()
    assert asked.tokens == answer(llama, asked.prompt, 4)


def test_a_more_urgent_prompt_goes_past_one_on_its_way(one: Rig, llama: Path) -> None:
    stream, first = half_way(one)
    second = one.submit(random_tokens(200, 3), 4, priority=1)
    one.run(second)
    assert not first.done
    one.run(first, stream)
    for each in (first, second, stream):
        assert each.tokens == answer(llama, each.prompt, len(each.tokens))
