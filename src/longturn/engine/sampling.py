"""Logits in, tokens out.

Order: grammar, logit bias and min_tokens, penalties, temperature, top_k, min_p, top_p. Every step that truncates does
it by *value* (a floor below which logits go), never by rank, and the draw is one uniform number against the cumulative
distribution in token order. So a request's answer depends on its own logits and seed, not on its neighbours in the
batch nor on how a device orders equal logits. Tokens that tie with the last one admitted are admitted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longturn.engine.constraint import Constraint
from longturn.engine.sampling_params import SamplingParams
from longturn.errors import BadLogits, GrammarFailed

# Nearly every nucleus lies within this many tokens; only a flatter distribution pays for ranking more of them.
NUCLEUS_GUESS = 1024


@dataclass(eq=False)
class SampleState:
    """What the sampler must know of one request between its steps.

    `prompt_ids` is int32 [prompt length], read by the repetition penalty. The engine appends each token to
    `output_ids`; the sampler only reads it. `eos_ids` and the request's own stop ids are held back until `min_tokens`
    are out. `constraint` is there if the request has a grammar; the engine advances it by each token as well.
    """

    params: SamplingParams
    prompt_ids: npt.NDArray[np.int32]
    eos_ids: tuple[int, ...] = ()
    output_ids: list[int] = field(default_factory=list)
    constraint: Constraint | None = None
    generator: torch.Generator | None = field(init=False, default=None)
    seen: SeenTokens | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.params.greedy:
            return
        # On the CPU whatever the device, so that a seed means the same everywhere.
        self.generator = torch.Generator()
        if self.params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(self.params.seed)


@dataclass(frozen=True)
class Sampled:
    """One chosen token. `logprob` and `top` (most likely first) are of the model's own distribution, or None."""

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class SeenTokens:
    """How often each token has occurred, kept up to date by the tokens added since the last step."""

    def __init__(self, prompt_ids: npt.NDArray[np.int32], vocab: int, device: torch.device) -> None:
        self.counts = torch.zeros(vocab, dtype=torch.float32, device=device)
        self.anywhere = torch.zeros(vocab, dtype=torch.bool, device=device)
        self.anywhere[torch.from_numpy(np.unique(prompt_ids).astype(np.int64)).to(device)] = True
        self._read = 0

    def update(self, output_ids: list[int]) -> None:
        """Count `output_ids` from where the last update ended. Mutates `counts` (float32 [vocab]) and `anywhere`."""
        fresh = torch.tensor(output_ids[self._read :], dtype=torch.int64, device=self.counts.device)
        self.counts.index_add_(0, fresh, torch.ones_like(fresh, dtype=torch.float32))
        self.anywhere[fresh] = True
        self._read = len(output_ids)


class TokenSource(Protocol):
    """Where the next tokens come from."""

    def sample(self, logits: Any, states: Sequence[SampleState]) -> list[Sampled]:
        """One token per state, in order."""


class Sampler:
    """Chooses one token for each row of a batch."""

    def sample(self, logits: Tensor, states: Sequence[SampleState]) -> list[Sampled]:
        """Choose a token per row of `logits` (any float dtype, [n, vocab], left unchanged), in order.

        Advances the generators of the rows that sample. Before that raises GrammarFailed for rows without a token that
        fits, and BadLogits for rows that are not finite.
        """
        if logits.shape[0] != len(states):
            raise ValueError(f"{logits.shape[0]} rows of logits for {len(states)} requests")
        params = [state.params for state in states]
        if all(p.greedy and not p.reshapes and p.logprobs is None for p in params):
            return [Sampled(token) for token in _argmax(logits)]

        # First, since a device may still be computing the logits.
        masks = _masks(states, logits.shape[-1])
        # float64 sums are needed below, and Metal has none.
        raw = (logits.cpu() if logits.device.type == "mps" else logits).float()
        shaped, tokens = raw, _argmax(raw)
        if any(p.reshapes for p in params):
            shaped = raw.clone()
            for number, mask in masks.items():
                shaped[number].masked_fill_(torch.from_numpy(~mask).to(raw.device), -torch.inf)
            for row, state in zip(shaped, states, strict=True):
                _reshape(row, state)
            anew = [i for i, p in enumerate(params) if p.greedy and p.reshapes]
            if anew:
                for i, token in zip(anew, shaped[anew].argmax(-1).tolist(), strict=True):
                    tokens[i] = token
        drawn = [i for i, p in enumerate(params) if not p.greedy]
        if drawn:
            rows = shaped if len(drawn) == len(states) else shaped[drawn]
            for i, token in zip(drawn, _draw(rows, [states[i] for i in drawn]), strict=True):
                tokens[i] = token
        return _with_logprobs(raw, tokens, params)


def _masks(states: Sequence[SampleState], vocab: int) -> dict[int, npt.NDArray[np.bool_]]:
    """The tokens that fit, by row, for those with a grammar. Raises GrammarFailed for those where none is known."""
    masks = {row: state.constraint.mask(vocab) for row, state in enumerate(states) if state.constraint is not None}
    if failed := [row for row, mask in masks.items() if mask is None]:
        raise GrammarFailed(failed)
    return {row: mask for row, mask in masks.items() if mask is not None}


def _argmax(logits: Tensor) -> list[int]:
    """The best token of each row, in one transfer from the device."""
    if logits.device.type == "cpu":
        # Four to seven times faster than torch's. What is not a number counts as greatest.
        values = logits.float().numpy()
        best_at = values.argmax(-1)
        finite = np.isfinite(values[np.arange(len(values)), best_at])
        tokens: list[int] = np.where(finite, best_at, -1).tolist()
    else:
        best, index = logits.max(dim=-1)
        tokens = torch.where(best.isfinite(), index, -1).tolist()
    if -1 in tokens:
        raise BadLogits([row for row, token in enumerate(tokens) if token == -1])
    return tokens


def _reshape(row: Tensor, state: SampleState) -> None:
    """Apply bias, min_tokens and penalties to one float32 [vocab] row, in place."""
    params = state.params
    vocab = row.shape[0]
    bias = {token: value for token, value in params.logit_bias.items() if token < vocab}
    if bias:
        row[list(bias)] += torch.tensor(list(bias.values()), dtype=row.dtype, device=row.device)
    if len(state.output_ids) < params.min_tokens:
        row[[token for token in (*state.eos_ids, *params.stop_token_ids) if token < vocab]] = -torch.inf
    if params.repetition_penalty == 1.0 and not params.presence_penalty and not params.frequency_penalty:
        return
    if state.seen is None:
        state.seen = SeenTokens(state.prompt_ids, vocab, row.device)
    state.seen.update(state.output_ids)
    if params.repetition_penalty != 1.0:
        penalised = torch.where(row > 0, row / params.repetition_penalty, row * params.repetition_penalty)
        row.copy_(torch.where(state.seen.anywhere, penalised, row))
    row -= params.frequency_penalty * state.seen.counts
    row -= params.presence_penalty * (state.seen.counts > 0)


def _draw(logits: Tensor, states: Sequence[SampleState]) -> list[int]:
    """Truncate and draw: float32 [n, vocab] (not changed) to n tokens."""
    vocab = logits.shape[-1]
    params = [state.params for state in states]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(logits.device).unsqueeze(-1)

    # Subtracting the peak first keeps tiny temperatures from overflowing.
    logits = (logits - logits.amax(-1, keepdim=True)) / column([p.temperature for p in params]).float().clamp(min=1e-6)
    ranks = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
    limited = [i for i, rank in enumerate(ranks) if rank < vocab]
    if limited:
        ranked = logits[limited].topk(max(ranks[i] for i in limited)).values
        last = column([ranks[i] - 1 for i in limited]).long()
        floor = torch.full_like(logits[:, :1], -torch.inf)
        floor[limited] = ranked.gather(-1, last)
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if any(p.min_p > 0 for p in params):
        # The peak is at 0, so a share of the peak's probability is its logarithm.
        logits = logits.masked_fill(logits < column([p.min_p for p in params]).log().float(), -torch.inf)
    probs = logits.softmax(-1)
    nucleus = [i for i, p in enumerate(params) if p.top_p < 1]
    if nucleus:
        floor = torch.zeros_like(probs[:, :1])
        floor[nucleus] = _nucleus_floor(probs[nucleus], column([params[i].top_p for i in nucleus]))
        probs = probs.masked_fill(probs < floor, 0.0)

    edges = probs.cumsum(-1, dtype=torch.float64)
    uniform = torch.stack([torch.rand(1, generator=state.generator, dtype=torch.float64) for state in states])
    # A hair below 1, so that rounding cannot reach the last edge and fall off the end.
    target = uniform.to(logits.device) * (1 - 2**-50) * edges[:, -1:]
    tokens: list[int] = torch.searchsorted(edges, target, right=True).squeeze(-1).tolist()
    return tokens


def _nucleus_floor(probs: Tensor, top_p: Tensor, guess: int = NUCLEUS_GUESS) -> Tensor:
    """The smallest probability inside the nucleus: float32 [n, vocab], float64 [n, 1] to float32 [n, 1]."""
    vocab = probs.shape[-1]
    ranked = probs.topk(min(guess, vocab)).values
    upto = ranked.cumsum(-1, dtype=torch.float64)
    # The first token is always inside; each next one is while those before it do not reach top_p.
    inside = (upto < top_p).sum(-1, keepdim=True).clamp(max=ranked.shape[-1] - 1)
    floor = ranked.gather(-1, inside)
    if guess < vocab:
        wider = [row for row, short in enumerate((upto[:, -1:] < top_p).squeeze(-1).tolist()) if short]
        if wider:
            floor[wider] = _nucleus_floor(probs[wider], top_p[wider], guess * 16)
    return floor


def _with_logprobs(raw: Tensor, tokens: list[int], params: Sequence[SamplingParams]) -> list[Sampled]:
    """Attach what each request asked for: `raw` is the model's own float32 [n, vocab]."""
    sampled = [Sampled(token) for token in tokens]
    rows = [i for i, p in enumerate(params) if p.logprobs is not None]
    if not rows:
        return sampled
    logprobs = raw[rows].log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor([[tokens[i]] for i in rows], device=raw.device)).squeeze(-1).tolist()
    best = logprobs.topk(min(max(params[i].logprobs or 0 for i in rows), raw.shape[-1]))
    ids, values = best.indices.tolist(), best.values.tolist()
    for n, i in enumerate(rows):
        count = params[i].logprobs or 0
        top = list(zip(ids[n][:count], values[n][:count], strict=True))
        sampled[i] = Sampled(tokens[i], chosen[n], top)
    return sampled
