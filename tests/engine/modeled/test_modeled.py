"""The clock, the runner and the mover of a simulated engine: time passes exactly as the cost model says."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from longturn.cache import Fetch, LongturnCache, LongturnOptions, PrefixCache, Runs
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.engine.cost import CostModel, StepSpan, load_hardware_profile, load_model_profile
from longturn.engine.modeled import ModeledMover, ModeledRunner, VirtualClock
from longturn.engine.runner.contract import Passage, Span

COST = CostModel(load_model_profile("smollm2-135m"), load_hardware_profile("h100-sxm"))
PAGE = 16
PAGE_BYTES = PAGE * COST.shape.token_bytes


def kept(cache: PrefixCache, mover: ModeledMover, tokens: range) -> None:
    """A request of these tokens comes and goes; its whole pages are written through to host memory."""
    prompt = np.arange(tokens.start, tokens.stop, dtype=np.int32)
    allocation = cache.admit(cache.lookup(prompt), 1)
    assert allocation is not None
    mover.carry_out(cache)
    assert cache.extend(allocation, len(prompt))
    cache.commit(allocation, prompt)
    cache.release(allocation)
    mover.carry_out(cache)


def test_a_clock_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(2.0)
    clock.until(1.0)
    assert clock() == 2.0
    clock.until(5.5)
    assert clock() == clock.now == 5.5


def test_a_step_takes_what_it_costs() -> None:
    clock = VirtualClock()
    runner = ModeledRunner(COST, clock, PAGE)
    tokens = np.zeros(100, dtype=np.int32)
    spans = [Span(tokens, 30, Runs(), True, True), Span(tokens[:1], 500, Runs(), True, False)]
    assert runner.execute(spans) is None
    assert clock() == COST.step_seconds([StepSpan(100, 30, True), StepSpan(1, 500, False)]) > 0
    assert runner.shape is COST.shape
    assert runner.pool.page_bytes == PAGE_BYTES
    for ask in (lambda: runner.pool.read(Runs()), lambda: runner.pool.write(Runs(), [], 0)):
        with pytest.raises(NotImplementedError, match="use a ModeledMover"):
            ask()


def test_tokens_that_go_through_some_layers_take_a_part_of_the_time() -> None:
    clock, cost = VirtualClock(), copy(COST)
    cost.shape = replace(COST.shape, layers=30)
    runner = ModeledRunner(cost, clock, PAGE)
    tokens, passage = np.zeros(100, dtype=np.int32), Passage(100)
    token = Span(tokens[:1], 500, Runs(), True, False)
    for until in (12, 20, 30):
        runner.execute([token, Span(tokens, 30, Runs(), until == 30, True, passage, until)])
        assert passage.layer == until
    # Of the step's own time, what is there for so few tokens anyway comes once a step.
    alone, together = (COST.model_seconds([StepSpan(1, 500, False), *more]) for more in ([], [StepSpan(100, 30, True)]))
    assert clock() == pytest.approx(2 * alone + together + 3 * COST.scheduling_seconds(2))
    assert COST.flops([StepSpan(100, 30, True, 0.25)]) == COST.flops([StepSpan(100, 30, True)]) / 4


def test_host_memory_is_counted_from_save_to_drop() -> None:
    """Three pages from the first save on, two more 10 s later, and 5 s after that all are dropped."""
    clock = VirtualClock()
    cache = make_policy("longturn", {"page_size": PAGE}, Sizes(400, 400, real=True, clock=clock))
    mover = ModeledMover(COST, clock, PAGE)
    kept(cache, mover, range(3 * PAGE))
    assert clock() == COST.transfer_seconds("device-host", 3 * PAGE_BYTES)
    assert mover.traffic.bytes == {"device-host": 3 * PAGE_BYTES}
    assert mover.host_byte_seconds == 0
    clock.advance(10)
    assert mover.host_byte_seconds == pytest.approx(30 * PAGE_BYTES)
    kept(cache, mover, range(1000, 1000 + 2 * PAGE))
    saving = COST.transfer_seconds("device-host", 2 * PAGE_BYTES)
    clock.advance(5)
    held = (3 * (10 + saving + 5) + 2 * 5) * PAGE_BYTES
    assert mover.host_byte_seconds == pytest.approx(held)
    cache.clear("host")
    mover.carry_out(cache)
    clock.advance(100)
    assert mover.host_byte_seconds == pytest.approx(held)
    assert mover.traffic.bytes == {"device-host": 5 * PAGE_BYTES}


def test_a_load_takes_the_time_of_its_link() -> None:
    clock = VirtualClock()
    cache = make_policy("longturn", {"page_size": PAGE}, Sizes(400, 400, real=True, clock=clock))
    mover = ModeledMover(COST, clock, PAGE)
    kept(cache, mover, range(4 * PAGE))
    cache.clear("device")
    began = clock()
    hit = cache.lookup(np.arange(4 * PAGE + 1, dtype=np.int32))
    assert (hit.device, hit.host) == (0, 4 * PAGE)
    assert cache.admit(hit, 1) is not None
    mover.carry_out(cache)
    assert clock() - began == pytest.approx(COST.transfer_seconds("device-host", 4 * PAGE_BYTES))
    assert mover.traffic.bytes == {"device-host": 8 * PAGE_BYTES}


def test_fetches_run_beside_the_engine_one_after_the_other() -> None:
    clock = VirtualClock()
    cache = LongturnCache(LongturnOptions(400, host_pages=20, page_size=PAGE), clock=clock)
    mover = ModeledMover(COST, clock, PAGE)
    one = COST.transfer_seconds("host-disk", 2 * PAGE_BYTES)
    landed: list[tuple[float, int]] = []
    cache.landed = lambda fetch, n_pages: landed.append((clock(), n_pages))  # type: ignore[method-assign]
    for _ in range(2):
        mover.start_fetch(cache, Fetch([b"a", b"b"]))
    assert clock() == 0
    assert mover.fetching
    assert not mover.finish_fetches(cache)
    assert mover.finish_fetches(cache, 1.0)
    assert mover.finish_fetches(cache, 1.0)
    assert landed == [(pytest.approx(one), 2), (pytest.approx(2 * one), 2)]
    assert not mover.fetching
    assert not mover.finish_fetches(cache, 1.0)
    # Nothing is waited for longer than was allowed.
    mover.start_fetch(cache, Fetch([b"a", b"b"]))
    assert not mover.finish_fetches(cache, one / 4)
    assert clock() == pytest.approx(2.25 * one)
