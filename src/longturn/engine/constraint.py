"""Answers that fit a grammar: grammars compiled for one model, and which tokens each answer may go on with.

llguidance does the work. It is loaded with the first grammar, and so is its view of the vocabulary (about a second).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from longturn.dialects.grammar import Grammar
from longturn.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerBase

COMPILED = 128
"""Grammars that are kept compiled."""
SLOWEST_MASK = 0.25
"""Seconds of CPU. Usual masks take a tenth of a millisecond; nobody's grammar may hold up everybody's tokens."""
LEXER_FUEL = 500_000
"""llguidance's measure of how large a grammar's texts may get before they are looked at; half of its default.

Ten tools of 180 fields each take a fifth. Repetitions of repetitions, which pass the first look, fail at half the cost.
"""
DEEP_STACK = 512 << 20
"""Bytes, of which only those that are needed become memory: llguidance compiles nested grammars by recursion."""

T = TypeVar("T")
_starting = Lock()


class Constraint:
    """Where one answer stands in its grammar. Not for two threads at once. eos_ids: tokens that end an answer."""

    def __init__(self, matcher: LLMatcher, eos_ids: list[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids

    def mask(self, width: int) -> npt.NDArray[np.bool_] | None:
        """Which of the first `width` tokens may come next, an end of the answer where it is complete: bool [width].

        Changes nothing. None if that cannot be told, or not in time, or if no token of this vocabulary fits.
        """
        began = time.thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error() or time.thread_time() - began > SLOWEST_MASK:
            return None
        allowed = np.unpackbits(bits, count=width, bitorder="little").view(np.bool_)
        if not self._matcher.is_accepting():
            # Where a grammar leaves no choice but the text of such a token, llguidance takes it for the token itself.
            allowed[self._eos_ids] = False
        return allowed if allowed.any() else None

    def advance(self, token: int) -> bool:
        """Take the token that was chosen; True when nothing may follow it. Mutates this constraint."""
        self._matcher.consume_token(token)
        return self._matcher.is_stopped() and not self._matcher.is_error()


class Grammars:
    """Compiles grammars for one model. May be used from any thread.

    tokenizer: a fast one; vocab_size: width of the model's logits; eos_ids: tokens that may end a complete answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = [token for token in eos_ids if token < vocab_size]
        self._words: LLTokenizer | None = None
        self._loading = Lock()
        # Without a lock: a hit must not wait for somebody else's grammar to be compiled.
        self._compiled = lru_cache(COMPILED)(lambda grammar: _with_deep_stack(lambda: self._compile(grammar)))

    def prepare(self, grammar: Grammar) -> None:
        """Compile `grammar` unless it is known: milliseconds, or a second for a large one. Raises as `start` does."""
        self._compiled(grammar)

    def start(self, grammar: Grammar) -> Constraint:
        """The constraint of an answer that begins. Quick once the grammar is prepared.

        Raises RequestError, naming the grammar's `param`, for one that cannot be compiled or costs too much.
        """
        return Constraint(self._compiled(grammar).deep_copy(), self._eos_ids)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        source = _source(grammar)
        limits = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, verbose_errors=False)
        matcher = LLMatcher(self._view(grammar), source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        # The first mask also fills caches that all copies share; that of a copy shows what an answer will cost.
        Constraint(matcher, self._eos_ids).mask(self._vocab_size)
        trial = matcher.deep_copy()
        if Constraint(trial, self._eos_ids).mask(self._vocab_size) is None:
            raise _refused(grammar, trial.get_error() or "no answer can begin so, or it takes too long to tell")
        return matcher

    def _view(self, grammar: Grammar) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        with self._loading:
            if self._words is None:
                try:
                    self._words = from_tokenizer(
                        self._tokenizer,  # type: ignore[arg-type]  # it refuses slow ones itself
                        n_vocab=max(self._vocab_size, len(self._tokenizer)),
                        eos_token=self._eos_ids or None,
                    )
                except ValueError as error:
                    raise _refused(grammar, f"this model's tokenizer cannot be constrained ({error})") from error
            return self._words


def _with_deep_stack(work: Callable[[], T]) -> T:
    """Do `work` in a thread of its own, where a long chain of rules or references does not end the process."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    with _starting:
        usual = threading.stack_size(DEEP_STACK)
        try:
            threading.Thread(target=run, name="longturn-grammar", daemon=True).start()
        finally:
            threading.stack_size(usual)
    return done.result()


def _source(grammar: Grammar) -> str:
    """The grammar in the one form that llguidance compiles."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.source)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)
        case "gbnf":
            try:
                return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.source))
            except Exception as error:  # bare ones and RecursionError among them
                raise _refused(grammar, str(error)) from None


def _refused(grammar: Grammar, why: str) -> RequestError:
    return RequestError(f"{grammar.param} cannot be enforced: {' '.join(why.split())}.", param=grammar.param)
