"""Hit versus miss: the same prompts cold and from every tier, their answers and logits compared.

The cold prompts run one after another and the hits all at once, so that the shapes of their batches differ as much as
they do in service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longturn.cache import Tokens
from longturn.engine.doctor import Check
from longturn.engine.mover import DevicePool
from longturn.engine.options import EngineOptions
from longturn.engine.request import Output, Request
from longturn.engine.runner.contract import Logits, ModelShape, Runner, Span
from longturn.engine.runner.torch_runner import TorchRunner
from longturn.engine.sampling_params import SamplingParams
from longturn.engine.service import EngineService
from longturn.errors import ModelError
from longturn.ledger import RequestLine
from longturn.store import DiskStore

# No multiple of a page or a chunk, longer than the chunk of deterministic mode, and further apart than answers are
# long: so the number of tokens before a row of logits says whose it is.
LENGTHS = (301, 423, 549, 667)
OUTPUT = 16
# Each tier, and what must be emptied before it is the one to answer.
TIERS = {"device": (), "host": ("device",), "disk": ("device", "host")}
# Logits of 16-bit models may differ by this share of the largest one; wrong KV is off by several times as much.
ROUNDING = 0.05
_PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class _Round:
    """The answers to all prompts, and the logits behind each, by the number of tokens before them."""

    answers: Sequence[Sequence[int]]
    lines: Sequence[RequestLine]
    logits: dict[int, Tensor]


class _Recorder:
    """A runner that keeps the logits it gives."""

    def __init__(self, runner: Runner) -> None:
        self.logits: dict[int, Tensor] = {}
        self._runner = runner

    @property
    def shape(self) -> ModelShape:
        return self._runner.shape

    @property
    def pool(self) -> DevicePool:
        return self._runner.pool

    def execute(self, spans: Sequence[Span]) -> Logits:
        logits = self._runner.execute(spans)
        lengths = [span.start + len(span.tokens) for span in spans if span.logits]
        self.logits.update(zip(lengths, logits.float().cpu(), strict=True))
        return logits


def hit_versus_miss(mode: str, options: EngineOptions, progress: Callable[[str], None]) -> Iterator[Check]:
    """Compare the answers from each tier with the cold ones, in an engine of its own.

    In deterministic mode all logits must be equal to the bit, in float32 all answers to the token. Models in 16 bits
    may take another token where two are nearly as likely: that is shown, and only logits that are further off than
    rounding explains are a failure. Raises ConfigError, ModelError or StoreError.
    """
    service = EngineService.start(options, progress)
    built = service.built
    runner = built.engine.runner
    assert isinstance(runner, TorchRunner)
    recorder = built.engine.runner = _Recorder(runner)
    dtype = str(runner.dtype).removeprefix("torch.")
    try:
        prompts = _prompts(service)
        progress(f"comparing hits and misses, {mode} mode in {dtype}")
        cold = _together([_ask(service, recorder, [prompt]) for prompt in prompts])
        for tier, emptied in TIERS.items():
            for store in built.stores:
                if isinstance(store, DiskStore):
                    store.flush(_PATIENCE_SECONDS)
            for upper in emptied:
                service.clear_tier(upper)
            warm = _ask(service, recorder, prompts)
            yield _compare(mode, dtype, tier, cold, warm)
        service.check_integrity()
    finally:
        service.close()


def _prompts(service: EngineService) -> list[Tokens]:
    """Random tokens: they suit every model, and no prompt begins like another."""
    model, random = service.model, np.random.default_rng(0)
    prompts = [
        random.integers(0, model.vocab_size, length, dtype=np.int32)
        for length in LENGTHS
        if length + OUTPUT <= model.context
    ]
    if not prompts:
        raise ModelError(f"{model.name} has a context of {model.context} tokens, too short for the test")
    return prompts


def _ask(service: EngineService, recorder: _Recorder, prompts: Sequence[Tokens]) -> _Round:
    """Send all prompts at once and wait for their answers. Raises what ends a request with an error."""
    logits = recorder.logits = dict[int, Tensor]()
    params = SamplingParams(max_tokens=OUTPUT, temperature=0, ignore_eos=True)
    answers: list[list[int]] = []
    lines: list[Future[RequestLine]] = []
    for prompt in prompts:
        answers.append([])
        lines.append(Future())
        service.submit(Request(prompt, params, _collector(answers[-1], lines[-1])))
    return _Round(answers, [line.result(_PATIENCE_SECONDS) for line in lines], logits)


def _collector(answer: list[int], line: Future[RequestLine]) -> Callable[[Output], None]:
    def collect(output: Output) -> None:
        answer.extend(output.token_ids)
        if output.error is not None:
            line.set_exception(output.error)
        elif output.line is not None:
            line.set_result(output.line)

    return collect


def _together(rounds: Sequence[_Round]) -> _Round:
    return _Round(
        [answer for each in rounds for answer in each.answers],
        [line for each in rounds for line in each.lines],
        {length: row for each in rounds for length, row in each.logits.items()},
    )


def _compare(mode: str, dtype: str, tier: str, cold: _Round, warm: _Round) -> Check:
    difference, largest, identical, other = 0.0, 0.0, True, 0
    for line, expected, answer in zip(cold.lines, cold.answers, warm.answers, strict=True):
        pairs = list(zip(expected, answer, strict=True))
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
        other += same is not None
        # Behind the first token that differs the logits are those of another text.
        for n in range(len(pairs) if same is None else same + 1):
            a, b = cold.logits[line.use.logical + n], warm.logits[line.use.logical + n]
            difference = max(difference, float((a - b).abs().max()))
            largest = max(largest, float(a.abs().max()))
            identical = identical and torch.equal(a, b)
    cached = sum(line.use.cached.get(tier, 0) for line in warm.lines)
    logical = sum(line.use.logical for line in warm.lines)
    served = all(line.use.cached_total == line.use.cached.get(tier, 0) > 0 for line in warm.lines)
    if mode == "deterministic":
        ok = identical and not other
    elif dtype == "float32":
        ok = not other
    else:
        ok = difference <= ROUNDING * largest
    detail = f"{dtype}, {cached} of {logical} tokens from {tier}: "
    detail += "all answers equal" if not other else f"{other} of {len(cold.answers)} answers differ"
    detail += ", logits bit-identical" if identical else f", largest logit difference {difference:.2g}"
    if not served:
        detail += f"; not every prompt was served from {tier}, so this was not tested: look for warnings above"
    elif not ok:
        detail += "; a hit changes the answer: please report this with the model and the device"
    figures = {
        "mode": mode,
        "dtype": dtype,
        "tier": tier,
        "prompts": len(cold.answers),
        "logical": logical,
        "cached": cached,
        "different_answers": other,
        "largest_logit_difference": difference,
        "largest_logit": largest,
        "bit_identical": identical,
    }
    return Check(f"{mode} hit from {tier}", ok and served, detail, figures)
