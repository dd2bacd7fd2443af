"""The engine in a thread of its own, to be called from any other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from longturn.cache import CacheState, Event, Hint
from longturn.engine.build import Built, build
from longturn.engine.constraint import Grammars
from longturn.engine.loop import ENGINE_FAILED, Counters
from longturn.engine.options import EngineOptions
from longturn.engine.request import Request
from longturn.engine.sampling_params import SamplingParams
from longturn.errors import EngineStopped, PromptTooLong, QueueFull, RequestError
from longturn.ledger import RequestLine

T = TypeVar("T")
log = logging.getLogger(__name__)
# How long an idle engine sleeps when a fetch is under way but nothing can be computed.
_FETCH_WAIT = 0.05
# An idle engine checks its cache at most this often.
_CHECK_SECONDS = 30.0


@dataclass(frozen=True)
class ModelInfo:
    """What clients may know of the model. created: unix seconds; context: most tokens of prompt and output."""

    name: str
    context: int
    vocab_size: int
    fingerprint: str
    created: int


@dataclass(frozen=True)
class EngineState:
    """A picture of the engine."""

    running: int
    waiting: int
    cache: CacheState
    traffic_bytes: dict[str, int]
    counters: Counters


class EngineService:
    """Runs one engine. All methods may be called from any thread; outputs come from the engine's own.

    built: what it runs, for checks to look at.
    """

    def __init__(self, make: Callable[[], Built], max_waiting: int) -> None:
        """`make` runs in the engine's thread, and what it raises is raised here.

        All work of the model must come from one thread: with teams of threads for two, libgomp sees more threads than
        cores and lets them sleep at every operation, which takes half as much time again.
        """
        made: Future[Built] = Future()
        ready = threading.Event()

        def live() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)
                return
            ready.wait()
            self._run()

        self._thread = threading.Thread(target=live, name="longturn-engine", daemon=True)
        self._thread.start()
        built = made.result()
        engine = built.engine
        self.tokenizer = engine.tokenizer
        self.model = ModelInfo(
            engine.model,
            engine.max_length,
            engine.runner.shape.vocab_size,
            built.model.fingerprint,
            int(time.time()),
        )
        self._grammars = Grammars(engine.tokenizer, engine.runner.shape.vocab_size, engine.eos_ids)
        self.error: Exception | None = None
        self.built = built
        self._engine = engine
        self._max_waiting = max_waiting
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._pending = 0
        self._line_callbacks: list[Callable[[RequestLine], None]] = []
        self._event_callbacks: list[Callable[[list[Event]], None]] = []
        engine.on_line = self._on_line
        engine.on_events = self._on_events
        ready.set()

    @classmethod
    def start(cls, options: EngineOptions, progress: Callable[[str], None] | None = None) -> EngineService:
        """Build an engine and start it. Takes seconds; raises ConfigError, ModelError or StoreError."""
        return cls(lambda: build(options, progress or (lambda message: None)), options.max_waiting)

    @property
    def alive(self) -> bool:
        """Whether requests can be served."""
        return self._thread.is_alive() and self.error is None and not self._closing

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar of `params`, if it has one, so that `submit` is quick. Raises RequestError for a bad one.

        Takes milliseconds, but a second or two for the first grammar and for very large ones: not for an event loop.
        """
        if params.grammar is not None:
            self._grammars.prepare(params.grammar)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestError, PromptTooLong or QueueFull; EngineStopped when there is no engine."""
        self._check(request)
        grammar = request.params.grammar
        constraint = None if grammar is None else self._grammars.start(grammar)
        with self._wake:
            if not self.alive:
                raise EngineStopped("the engine has stopped: see the server's log, and restart it")
            if self._pending >= self._max_waiting + self._engine.scheduler.max_running:
                raise QueueFull(
                    f"{self._max_waiting} requests are waiting: try again in a moment, or raise --max-waiting",
                    retry_after=max(1, round(self._pending / 16)),
                )
            self._pending += 1
            self._inbox.append(lambda: self._engine.add(request, constraint))
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """End a request if it is still here; all it holds is freed."""
        self._post(lambda: self._engine.cancel(request_id))

    def hint(self, hints: Sequence[Hint]) -> None:
        """Tell the cache something beside any request; it acts on it before the next step, in this order."""

        def act() -> None:
            for hint in hints:
                self._engine.cache.hint(hint)

        self._post(act)

    def clear_tier(self, tier: str) -> int:
        """Evict what is not in use of a tier; returns the tokens freed. Raises ConfigError for an unknown tier."""
        return self._ask(lambda: self._engine.cache.clear(tier))

    def state(self) -> EngineState:
        """A picture taken between two steps."""
        engine = self._engine

        def look() -> EngineState:
            return EngineState(
                len(engine.scheduler.running),
                len(engine.scheduler.waiting),
                engine.cache.state(),
                dict(engine.mover.traffic.bytes),
                Counters(**vars(engine.counters)),
            )

        return self._ask(look)

    def check_integrity(self) -> None:
        """Raises CacheCorruption when an invariant of the cache is broken."""
        self._ask(self._engine.cache.check_integrity)

    def on_line(self, callback: Callable[[RequestLine], None]) -> None:
        """Call `callback` with the line of every request that ends."""
        self._line_callbacks.append(callback)

    def on_events(self, callback: Callable[[list[Event]], None]) -> None:
        """Call `callback` with what happens in the cache."""
        self._event_callbacks.append(callback)

    def close(self) -> None:
        """Cancel all requests, end the thread, flush and close the stores. May be called twice."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        self._thread.join(30)
        if self.error is not None:
            # The cache may be what has failed: nothing of it goes down any more.
            self.built = replace(self.built, write_back=False)
        self.built.close()

    def _check(self, request: Request) -> None:
        n, info = len(request.tokens), self.model
        if n == 0:
            raise RequestError("the prompt is empty: send at least one token", param="prompt")
        if n >= info.context:
            raise PromptTooLong(
                f"the prompt has {n} tokens, and prompt and output must fit in {info.context}: shorten it"
            )
        if int(request.tokens.min()) < 0 or int(request.tokens.max()) >= info.vocab_size:
            raise RequestError(f"token ids must lie between 0 and {info.vocab_size - 1}", param="prompt")

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _ask(self, question: Callable[[], T]) -> T:
        """Run `question` between two steps and return its answer."""
        if threading.current_thread() is self._thread:
            return question()
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        with self._wake:
            if not self.alive:
                raise EngineStopped("the engine has stopped: see the server's log, and restart it")
            self._inbox.append(run)
            self._wake.notify()
        return answer.result(60)

    def _on_events(self, events: list[Event]) -> None:
        for callback in self._event_callbacks:
            callback(events)

    def _on_line(self, line: RequestLine) -> None:
        with self._wake:
            self._pending -= 1
        for callback in self._line_callbacks:
            callback(line)

    def _run(self) -> None:
        try:
            checked = time.monotonic()
            while not self._closing:
                while self._inbox:
                    self._inbox.popleft()()
                if self._engine.step():
                    continue
                if self._engine.mover.fetching:
                    self._engine.mover.finish_fetches(self._engine.cache, _FETCH_WAIT)
                    continue
                if time.monotonic() - checked > _CHECK_SECONDS:
                    self._engine.cache.check_integrity()
                    checked = time.monotonic()
                with self._wake:
                    if not self._inbox and not self._closing:
                        self._wake.wait(_CHECK_SECONDS)
        except Exception as error:
            log.exception("the engine has failed")
            self.error = error
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Nobody may be left waiting for an answer."""
        with self._wake:
            left, self._inbox = list(self._inbox), deque()
        for action in left:
            try:
                action()
            except Exception:
                log.exception("a call to the engine that has failed")
        if self.error is None:
            for sequence in self._engine.scheduler.all():
                self._engine.cancel(sequence.request.id)
        else:
            self._engine.abandon("error", EngineStopped(ENGINE_FAILED))
