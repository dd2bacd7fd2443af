"""Steps as the engine itself makes them: conversations at concurrency, what each step held and how long it took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from longturn.engine import Request, SamplingParams
from longturn.engine.cost import StepSpan
from longturn.engine.loop import Engine
from longturn.engine.mover import DevicePool
from longturn.engine.request import Output
from longturn.engine.runner.contract import ModelShape, Runner, Span
from longturn.lab.calibrate.steps import Step

if TYPE_CHECKING:
    from torch import Tensor

# How many conversations go on at once.
CONCURRENCY = 4
# Bounds of a turn's new tokens and of its answer.
NEW_TOKENS, ANSWER_TOKENS = (30, 1000), (4, 24)


@dataclass(frozen=True)
class Stepped:
    """One step of an engine: its spans, seconds in the model and around it, requests that began and ended with it."""

    step: Step
    model_seconds: float
    own_seconds: float
    begun: int
    ended: int


class _Watched:
    """A runner that remembers what it was asked to compute."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.spans: list[StepSpan] = []
        self.seconds = 0.0

    @property
    def shape(self) -> ModelShape:
        return self._runner.shape

    @property
    def pool(self) -> DevicePool:
        return self._runner.pool

    def execute(self, spans: Sequence[Span]) -> Tensor:
        layers = self.shape.layers
        self.spans = [StepSpan(len(span.tokens), span.start, span.prompt, span.part(layers)) for span in spans]
        began = time.perf_counter()
        logits: Tensor = self._runner.execute(spans)
        # What is computed elsewhere has arrived when its values are here.
        logits[:1, :1].cpu()
        self.seconds = time.perf_counter() - began
        return logits


def run_conversations(engine: Engine, turns: int, seed: int) -> list[Stepped]:
    """Hold CONCURRENCY conversations of so many turns, each turn sent when the last one's answer is there.

    Changes the engine's cache. The seed fixes the lengths; the tokens are new every time, so nothing is found cached
    but a conversation's own history.
    """
    watched, sizes, tokens = _Watched(engine.runner), np.random.default_rng(seed), np.random.default_rng()
    most = engine.max_length // turns
    talks = [_Talk(sizes, tokens, turns, most, engine.runner.shape.vocab_size) for _ in range(CONCURRENCY)]
    steps: list[Stepped] = []
    real, engine.runner = engine.runner, watched
    try:
        while any(talk.goes_on for talk in talks):
            began, watched.spans = time.perf_counter(), []
            ready = [talk for talk in talks if talk.idle and talk.goes_on]
            for talk in ready:
                engine.add(talk.request())
            waiting = sum(not talk.idle for talk in talks)
            engine.step()
            took = time.perf_counter() - began
            ended = waiting - sum(not talk.idle for talk in talks)
            if watched.spans:
                own = took - watched.seconds
                steps.append(Stepped(tuple(watched.spans), watched.seconds, own, len(ready), ended))
    finally:
        engine.runner = real
    return steps


def typical(rounds: Sequence[Sequence[Stepped]]) -> list[Stepped]:
    """The same steps of several rounds as one, with the median of their seconds."""
    alike: dict[tuple[Step, int, int], list[Stepped]] = {}
    for stepped in (stepped for steps in rounds for stepped in steps):
        alike.setdefault((stepped.step, stepped.begun, stepped.ended), []).append(stepped)
    return [
        replace(
            same[0],
            model_seconds=float(np.median([stepped.model_seconds for stepped in same])),
            own_seconds=float(np.median([stepped.own_seconds for stepped in same])),
        )
        for same in alike.values()
    ]


class _Talk:
    """One conversation of random tokens."""

    def __init__(
        self, sizes: np.random.Generator, tokens: np.random.Generator, turns: int, most: int, vocab: int
    ) -> None:
        low, high = (min(bound, most // 2) for bound in NEW_TOKENS)
        self._new = np.exp(sizes.uniform(np.log(low), np.log(high + 1), turns)).astype(int).tolist()
        self._answers = np.minimum(sizes.integers(*ANSWER_TOKENS, turns), most // 2).tolist()
        self._tokens, self._vocab = tokens, vocab
        self._history: list[int] = []
        self.idle = True

    @property
    def goes_on(self) -> bool:
        return not self.idle or bool(self._new)

    def request(self) -> Request:
        self.idle = False
        self._history += self._tokens.integers(0, self._vocab, self._new.pop()).tolist()
        params = SamplingParams(max_tokens=self._answers.pop(), temperature=0.0, ignore_eos=True)
        return Request(np.array(self._history, dtype=np.int32), params, self._take)

    def _take(self, output: Output) -> None:
        self._history += output.token_ids
        self.idle = output.finish_reason is not None
