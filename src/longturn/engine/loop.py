"""The engine's loop: receive, admit, bring pages up, plan, compute, sample, hand out. It fits on one screen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longturn.cache import Event, PrefixCache, Tokens
from longturn.engine.constraint import Constraint
from longturn.engine.misses import MissRecorder
from longturn.engine.mover import PageMover
from longturn.engine.request import Output, Request
from longturn.engine.runner.contract import Logits, Runner, Span
from longturn.engine.sampling import Sampler, TokenSource
from longturn.engine.scheduler import Scheduler, Work
from longturn.engine.sequence import Sequence
from longturn.errors import EngineStopped, NoToken
from longturn.ledger import RequestLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)
ENGINE_FAILED = "the engine has failed: see the server's log, and restart it"
# Hints that protect what a request has just put into the cache, so they act when it ends as well.
_LASTING_HINTS = ("pin", "expect", "priority")


@dataclass
class Counters:
    """Sums since the start, for metrics and benchmarks. Seconds are of wall time."""

    steps: int = 0
    tokens: int = 0
    model_seconds: float = 0.0
    overhead_seconds: float = 0.0


@dataclass(eq=False)
class Engine:
    """Computes requests over one cache and one runner. Nothing here may be called from two threads at once.

    align: in deterministic mode, the multiple at which prompts are cut and kept; None otherwise. clock: seconds, the
    same that stamps arrivals; a virtual one makes the engine a simulator. misses: finds out why prompts were computed;
    None where nobody asks.
    """

    cache: PrefixCache
    mover: PageMover
    runner: Runner
    scheduler: Scheduler
    tokenizer: PreTrainedTokenizerBase
    model: str
    eos_ids: tuple[int, ...]
    max_length: int
    page_size: int
    align: int | None = None
    on_line: Callable[[RequestLine], None] = field(default=lambda line: None)
    on_events: Callable[[list[Event]], None] = field(default=lambda events: None)
    sampler: TokenSource = field(default_factory=Sampler)
    clock: Callable[[], float] = time.monotonic
    counters: Counters = field(default_factory=Counters)
    misses: MissRecorder | None = None

    def add(self, request: Request, constraint: Constraint | None = None) -> None:
        """Queue a request; its output comes through `request.on_output`. constraint: of its grammar, if it has one."""
        assert (constraint is None) == (request.params.grammar is None)
        sequence = Sequence(request, self.model, self.tokenizer, self.eos_ids, self.max_length, self.clock, constraint)
        try:
            for hint in request.hints:
                self.cache.hint(hint)
            self.scheduler.add(sequence)
        except Exception:
            self.scheduler.take_out(sequence)
            self._finish(sequence, sequence.ended("error", EngineStopped(ENGINE_FAILED)))
            raise

    def step(self) -> bool:
        """Compute one step; False when there was nothing to compute."""
        began = self.clock()
        self.mover.finish_fetches(self.cache)
        admitted = self.scheduler.admit()
        self.mover.carry_out(self.cache)
        self._tell_events()
        for sequence in admitted:
            self._begin(sequence)
        work = self.scheduler.plan()
        self.mover.carry_out(self.cache)
        if work:
            planned = self.clock()
            logits = [self.runner.execute(spans) for spans in self._spans(work)]
            computed = self.clock()
            self._account(work, computed - planned, planned - began)
            self._commit(work)
            self._hand_out([w.sequence for w in work if w.sequence.remaining == 0], logits)
            self.mover.carry_out(self.cache)
            ended = self.clock()
            self.scheduler.took(work, ended - began)
            self.counters.overhead_seconds += ended - began - (computed - planned)
        self._tell_events()
        return bool(work)

    def cancel(self, request_id: str, reason: str = "cancelled", error: Exception | None = None) -> None:
        """End a request now, if it is here, and free all it holds."""
        for sequence in self.scheduler.all():
            if sequence.request.id == request_id:
                self._end(sequence, sequence.ended(reason, error))

    def abandon(self, reason: str, error: Exception | None) -> None:
        """End all requests without touching the cache, which may be what has failed."""
        for sequence in self.scheduler.all():
            self.scheduler.take_out(sequence)
            self._finish(sequence, sequence.ended(reason, error))

    def _begin(self, sequence: Sequence) -> None:
        """Pages have landed, or not: from here on it is known what must be computed."""
        allocation = sequence.allocation
        assert allocation is not None
        sequence.computed = allocation.reused
        miss = self.misses.admitted(sequence.request, allocation) if self.misses else None
        if sequence.cached is None:
            sequence.cached = dict(allocation.cached)
            sequence.miss = miss
            sequence.admitted_at = self.clock()
        disk = allocation.cached.get("disk", 0)
        below, moved = allocation.cached.get("host", 0) + disk, sequence.cost.transfer_bytes
        for link, tokens in (("device-host", below), ("host-disk", disk)):
            if tokens:
                moved[link] = moved.get(link, 0) + tokens * self.runner.shape.token_bytes

    def _tell_events(self) -> None:
        if events := self.cache.events():
            if self.misses is not None:
                self.misses.note(events)
            self.on_events(events)

    def _spans(self, work: list[Work]) -> list[list[Span]]:
        """The spans of a step; in deterministic mode each is a step of its own, so that no answer feels another."""
        spans = []
        for w in work:
            sequence, start = w.sequence, w.sequence.computed
            assert start is not None
            assert sequence.allocation is not None
            stop = start + w.n
            spans.append(
                Span(
                    sequence.tokens[start:stop],
                    start,
                    sequence.allocation.runs,
                    stop == sequence.length and not self._on_the_way(w),
                    w.n > 1 or start < sequence.n_prompt,
                    sequence.passage,
                    w.until or 0,
                )
            )
        return [spans] if self.align is None else [[span] for span in spans]

    def _on_the_way(self, w: Work) -> bool:
        """Whether its tokens will not be through all layers after the step."""
        return w.until is not None and w.until < self.runner.shape.layers

    def _commit(self, work: list[Work]) -> None:
        """Make what was computed findable: prompts after every chunk, answers page by page."""
        for w in work:
            sequence = w.sequence
            if self._on_the_way(w):
                continue
            assert sequence.allocation is not None
            assert sequence.computed is not None
            sequence.passage = None
            sequence.computed += w.n
            self.counters.tokens += w.n
            if w.n > 1 or sequence.computed % self.page_size == 0:
                self._commit_sequence(sequence)

    def _commit_sequence(self, sequence: Sequence) -> Tokens:
        """Returns what the cache now has of the sequence."""
        assert sequence.allocation is not None
        n = sequence.computed or 0
        if self.align is not None:
            # Only what was computed as a whole chunk of a prompt will be computed to the same bits again.
            n = min(n, sequence.n_prompt) // self.align * self.align
        tokens = sequence.tokens[:n]
        self.cache.commit(sequence.allocation, tokens)
        return tokens

    def _hand_out(self, sequences: list[Sequence], logits: list[Logits]) -> None:
        """Choose the next token of each sequence that is computed to its end."""
        if not sequences:
            return
        rows = _joined(logits)
        try:
            samples = self.sampler.sample(rows, [sequence.state for sequence in sequences])
        except NoToken as error:
            for row in error.rows:
                self._end(sequences[row], sequences[row].ended("error", error))
            good = [i for i in range(len(sequences)) if i not in error.rows]
            self._hand_out([sequences[i] for i in good], [rows[good]])
            return
        for sequence, sample in zip(sequences, samples, strict=True):
            output = sequence.append(sample)
            if output.finish_reason is not None:
                self._end(sequence, output)
            elif not self._deliver(sequence, output):
                self._end(sequence, sequence.ended("cancelled"))

    def _deliver(self, sequence: Sequence, output: Output) -> bool:
        """Hand an output to its listener. One that fails is a client that is gone: False, and no harm to others."""
        try:
            sequence.request.on_output(output)
        except Exception:
            log.exception("the listener of request %s has failed", sequence.request.id)
            return False
        return True

    def _end(self, sequence: Sequence, output: Output) -> None:
        self.scheduler.take_out(sequence)
        # The answer need not wait until pages are saved, and is due even when the cache fails.
        self._finish(sequence, output)
        if sequence.allocation is not None and sequence.computed is not None:
            tokens = self._commit_sequence(sequence)
            self.mover.carry_out(self.cache)
            if self.misses is not None:
                self.misses.ended(sequence.request.salt, tokens, sequence.allocation)
        self.scheduler.free(sequence)
        for hint in sequence.request.hints:
            if hint.kind in _LASTING_HINTS:
                self.cache.hint(hint)

    def _finish(self, sequence: Sequence, output: Output) -> None:
        self._deliver(sequence, output)
        if output.line is not None:
            self.on_line(output.line)

    def _account(self, work: list[Work], seconds: float, scheduling: float) -> None:
        """Share the cost of a step among its requests: the model's `seconds` by tokens, those of scheduling by heads,
        memory by what each holds."""
        shape, total = self.runner.shape, sum(w.n * w.part for w in work)
        for w in work:
            cost, start, n = w.sequence.cost, w.sequence.computed or 0, w.n * w.part
            cost.flops += n * (shape.linear_flops + shape.attention_flops * (start + w.n / 2))
            cost.device_seconds += seconds * n / total
            cost.cpu_seconds += scheduling / len(work)
            assert w.sequence.allocation is not None
            cost.byte_seconds += len(w.sequence.allocation.runs) * shape.token_bytes * seconds
        self.counters.steps += 1
        self.counters.model_seconds += seconds


def _joined(logits: list[Logits]) -> Logits:
    if len(logits) == 1:
        return logits[0]
    import torch

    return torch.cat(logits)
