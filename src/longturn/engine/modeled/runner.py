"""A runner that computes nothing and takes the time that the cost model says."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.cache import Runs
from longturn.engine.cost import CostModel, StepSpan
from longturn.engine.modeled.clock import VirtualClock
from longturn.engine.mover import PageBytes
from longturn.engine.runner.contract import ModelShape, Span


class ModeledPool:
    """The sizes of a device pool that holds nothing."""

    def __init__(self, page_size: int, token_bytes: int) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * token_bytes

    def read(self, runs: Runs) -> PageBytes:
        raise NotImplementedError("nothing lies in a modelled pool: use a ModeledMover")

    def write(self, runs: Runs, pages: Sequence[PageBytes], skip: int) -> None:
        raise NotImplementedError("nothing lies in a modelled pool: use a ModeledMover")


class ModeledRunner:
    """Lets `clock` advance by what a step costs."""

    def __init__(self, cost: CostModel, clock: VirtualClock, page_size: int) -> None:
        self.pool = ModeledPool(page_size, cost.shape.token_bytes)
        self._cost = cost
        self._clock = clock

    @property
    def shape(self) -> ModelShape:
        return self._cost.shape

    def execute(self, spans: Sequence[Span]) -> None:
        """Take the time of the step (moves the clock, and a passage on). Gives no logits."""
        layers = self.shape.layers
        steps = [StepSpan(len(span.tokens), span.start, span.prompt, span.part(layers)) for span in spans]
        if (passage := spans[-1].passage) is not None:
            passage.layer = spans[-1].until
        self._clock.advance(self._cost.step_seconds(steps))
