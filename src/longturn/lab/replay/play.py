"""Feeds a trace to an engine, real or modelled, and writes down what became of every request.

The one loop of the `timed` and the `real` replay. They differ in the engine's clock, runner and mover alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from longturn.cache import Tokens
from longturn.engine.loop import Engine
from longturn.engine.request import Output, Request
from longturn.engine.sampling import Sampled, Sampler, SampleState
from longturn.engine.sampling_params import SamplingParams
from longturn.lab.replay.pace import Pace
from longturn.lab.replay.result import Served
from longturn.lab.replay.tokens import TokenWriter
from longturn.lab.trace import TraceRequest
from longturn.ledger import RequestLine


class Script:
    """Gives the answers that the trace holds, whatever the model says: later turns of the trace continue them."""

    def __init__(self) -> None:
        self._model = Sampler()
        self._answers: dict[int, Tokens] = {}

    def write(self, prompt: Tokens, answer: Tokens) -> None:
        """What follows `prompt`, known by its identity while its request is in the engine."""
        self._answers[id(prompt)] = answer

    def forget(self, prompt: Tokens) -> None:
        """Its request has ended."""
        self._answers.pop(id(prompt), None)

    def sample(self, logits: Any, states: Sequence[SampleState]) -> list[Sampled]:
        """The next token of each script; where there are logits the model's own choice is made and dropped."""
        if logits is not None:
            self._model.sample(logits, states)
        return [Sampled(int(self._answers[id(state.prompt_ids)][len(state.output_ids)])) for state in states]


def play(
    engine: Engine,
    pace: Pace,
    writer: TokenWriter,
    wait: Callable[[float], None],
    on_arrival: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda n: None,
) -> list[Served]:
    """Serve all requests of `pace`; returns them in the order of the trace (mutates the engine).

    wait: lets time pass up to a time of the engine's clock, when nothing can be computed before. Requests that do not
    fit are refused, and their sessions go on. on_arrival: called before each request enters the engine.
    """
    script = Script()
    engine.sampler = script
    served: dict[int, Served] = {}
    began = engine.clock()

    def done(number: int, request: TraceRequest, one: Served) -> None:
        served[number] = one
        pace.ended(request, engine.clock() - began)
        progress(len(served))

    def arrive(number: int, request: TraceRequest, time: float) -> None:
        prompt, answer = writer.request(request)
        if len(prompt) + len(answer) > engine.max_length:
            done(number, request, Served(request.id, len(prompt), {}, None, 0))
            return

        def on_output(output: Output) -> None:
            if output.line is not None:
                script.forget(prompt)
                done(number, request, _served(request, output.line))

        on_arrival()
        script.write(prompt, answer)
        params = SamplingParams(max_tokens=len(answer), temperature=0, ignore_eos=True)
        engine.add(
            Request(prompt, params, on_output, request.salt, request.session, id=str(number), arrived=began + time)
        )

    while True:
        due = pace.due()
        if due is not None and began + due <= engine.clock():
            arrive(*pace.next(), due)
        elif engine.step():
            continue
        elif engine.mover.fetching:
            engine.mover.finish_fetches(engine.cache, 1.0)
        elif due is not None:
            wait(began + due)
        elif not list(engine.scheduler.all()):
            return [served[number] for number in sorted(served)]
        else:
            raise RuntimeError("the engine holds requests that it cannot serve")


def _served(request: TraceRequest, line: RequestLine) -> Served:
    return Served(
        request.id,
        line.use.logical,
        {tier: n for tier, n in line.use.cached.items() if n},
        sum(line.use.cached.values()),
        line.use.output,
        None if line.ttft_ms is None else line.ttft_ms / 1e3,
        None if line.total_ms is None else line.total_ms / 1e3,
        line.resources,
    )
