"""Which tokens of which requests are computed in the next step.

Continuous batching: every decoding request gets its token, and what is left of the step's budget goes to prompts, in
chunks. Short prompts go before long ones, but a prompt gains weight while it waits, so none starves. Requests are
admitted while the cache has slots for them; when a decoding request finds none, the youngest one is preempted and
computed again later, from whatever of it is still cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longturn.cache import Hit, PrefixCache
from longturn.cache.radix import common_prefix
from longturn.engine.mover import PageMover
from longturn.engine.pace import Pace
from longturn.engine.runner.contract import Passage
from longturn.engine.sequence import Sequence

# A prompt that has waited for a second goes before one that is this many tokens shorter.
AGEING_TOKENS_PER_SECOND = 2000
# A prompt waits for another that is being computed when that will save it so many tokens.
WORTH_WAITING_TOKENS = 64
# While others decode, prompts get at most this share of a step, so that streams do not stall.
MIXED_SHARE = 4


@dataclass(frozen=True)
class Work:
    """`n` tokens of `sequence` to compute, from its first one that is not.

    until: the layer to which they get in this step, where that is not the end of all or they have begun in another;
    part: of all layers, those that they go through.
    """

    sequence: Sequence
    n: int
    until: int | None = None
    part: float = 1.0


class Scheduler:
    """Queue and running set of one engine.

    chunk_tokens: most tokens of a step; layers: by how many tokens of prompts may be computed one after the other (1:
    only by all at once); align: prompts are cut at multiples of this (deterministic mode); shares: the cache keeps what
    is computed, so that of two prompts with a common prefix one may wait for the other; clock: seconds, the same that
    stamps arrivals.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mover: PageMover,
        *,
        max_running: int,
        chunk_tokens: int,
        layers: int = 1,
        align: int | None = None,
        shares: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._cache = cache
        self._mover = mover
        self.max_running = max_running
        self._chunk_tokens = chunk_tokens
        self.pace = Pace(max(chunk_tokens // MIXED_SHARE, 1), layers)
        self._layers = layers
        self._align = align
        self._shares = shares
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        """Queue a request, and begin to fetch what the disk has of it."""
        self.waiting.append(sequence)
        self._lookup(sequence)

    def admit(self) -> list[Sequence]:
        """Lock prefixes and take slots for as many waiting requests as there is room for; returns them."""
        admitted: list[Sequence] = []
        for sequence in sorted(self.waiting, key=self._urgency):
            if len(self.running) >= self.max_running:
                break
            hit = self._lookup(sequence)
            if hit.arriving or self._soon_cached(sequence, hit):
                continue
            allocation = self._cache.admit(hit, sequence.max_length - sequence.length)
            if allocation is None:
                break
            sequence.allocation = allocation
            sequence.computed = None
            self.waiting.remove(sequence)
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def plan(self) -> list[Work]:
        """The next step. Takes slots for tokens to come, preempting requests when there are none."""
        decoding = [sequence for sequence in self.running if sequence.remaining == 1]
        for sequence in decoding:
            self._make_room(sequence, sequence.length)
        work = [Work(sequence, 1) for sequence in decoding if sequence.allocation is not None]
        n_decoding = len(work)
        budget: float = self._chunk_tokens - n_decoding
        if work:
            # At least one token, however many decode, prompts get on; but for steps that show what decoding takes.
            budget = min(max(budget, 1), self.pace.budget(n_decoding))
        prompts = [sequence for sequence in self.running if sequence.remaining > 1]
        for sequence in sorted(prompts, key=self._urgency):
            if budget < 1 or (work and work[-1].until is not None):
                break
            chunk = self._chunk(sequence, budget, n_decoding)
            self._make_room(sequence, (sequence.computed or 0) + chunk.n)
            work.append(chunk)
            budget -= chunk.n * chunk.part
        # Room for one may have been made by preempting another that was planned already.
        return [w for w in work if w.sequence.allocation is not None]

    def took(self, work: list[Work], seconds: float) -> None:
        """Learn from how long a step was computed."""
        prompts = [w.n * w.part for w in work if w.n > 1]
        if len(prompts) < len(work):
            self.pace.took(len(work) - len(prompts), sum(prompts), seconds)

    def take_out(self, sequence: Sequence) -> None:
        """Forget a request wherever it is. What it holds is for `free`."""
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    def free(self, sequence: Sequence) -> None:
        """Give back what a request holds."""
        if sequence.allocation is not None:
            allocation, sequence.allocation, sequence.passage = sequence.allocation, None, None
            self._cache.release(allocation)

    def all(self) -> Iterable[Sequence]:
        """Every request in the engine."""
        return [*self.running, *self.waiting]

    def _chunk(self, sequence: Sequence, budget: float, n_decoding: int) -> Work:
        """Tokens of a prompt for a step that has room for so many."""
        if self._align is not None:
            return Work(sequence, _aligned(sequence, self._align))
        if sequence.passage is None:
            n = min(sequence.remaining, self.pace.tokens(budget, n_decoding) if n_decoding else int(budget))
            if n <= budget:
                return Work(sequence, n)
            sequence.passage = Passage(n)
        passage = sequence.passage
        until = self.pace.until(budget, passage.n, passage.layer)
        return Work(sequence, passage.n, until, (until - passage.layer) / self._layers)

    def _lookup(self, sequence: Sequence) -> Hit:
        # In deterministic mode only prompts are reused, also after a preemption.
        tokens = sequence.tokens if self._align is None else sequence.tokens[: sequence.n_prompt]
        hit = self._cache.lookup(tokens, sequence.request.salt)
        sequence.estimate = sequence.length - hit.total
        if not sequence.fetched:
            sequence.fetched = True
            if (fetch := self._cache.prefetch(hit)) is not None:
                self._mover.start_fetch(self._cache, fetch)
                hit = self._cache.lookup(tokens, sequence.request.salt)
        return hit

    def _soon_cached(self, sequence: Sequence, hit: Hit) -> bool:
        """Whether a prompt under way will soon leave in the cache what this one would compute now as well."""
        worth = max(WORTH_WAITING_TOKENS, self._align or 0)
        return self._shares and any(
            other.remaining > 1
            and other.request.salt == sequence.request.salt
            and common_prefix(other.tokens, sequence.tokens) - hit.total >= worth
            for other in self.running
        )

    def _make_room(self, sequence: Sequence, length: int) -> None:
        """Slots for the first `length` tokens of `sequence`; it may itself be the one that is preempted."""
        while sequence.allocation is not None and not self._cache.extend(sequence.allocation, length):
            self._preempt(max(self.running, key=lambda s: (-s.request.priority, s.request.arrived)))

    def _preempt(self, sequence: Sequence) -> None:
        self.take_out(sequence)
        self.free(sequence)
        sequence.computed = None
        sequence.fetched = False
        self.waiting.append(sequence)

    def _urgency(self, sequence: Sequence) -> tuple[int, float]:
        waited = self._clock() - sequence.request.arrived
        left = sequence.estimate if sequence.computed is None else sequence.remaining
        return -sequence.request.priority, left - waited * AGEING_TOKENS_PER_SECOND


def _aligned(sequence: Sequence, align: int) -> int:
    """The next chunk in deterministic mode: the same cuts however often the sequence is computed.

    Tokens that were generated before a preemption are computed one by one, as they were at first.
    """
    computed = sequence.computed or 0
    return max(min(sequence.n_prompt - computed, align - computed % align), 1)
