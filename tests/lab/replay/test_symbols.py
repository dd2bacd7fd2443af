"""Blocks as symbols and as token ids: equal where the trace is equal, and as many as it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.lab.replay.symbols import Symbols
from longturn.lab.replay.tokens import TokenWriter
from longturn.lab.trace import Blocks, TraceRequest
from longturn.lab.trace.generate import Generated, Workload

UNIT = 10


def asked(ids: Sequence[int], prompt: int, answer: int, output: Sequence[int] | None) -> TraceRequest:
    known = None if output is None else Blocks.of(np.array(output, dtype=np.int64))
    return TraceRequest("r", "s", 0.0, Blocks.of(np.array(ids, dtype=np.int64)), prompt, answer, known)


def written(*requests: TraceRequest, unit: int = UNIT) -> list[tuple[list[int], list[int]]]:
    symbols = Symbols(unit)
    return [(prompt.tolist(), whole.tolist()) for prompt, whole in map(symbols.written, requests)]


def test_token_ids_stay_as_they_are() -> None:
    assert written(asked([5, 9, 7], 3, 2, [1, 2]), unit=1) == [([5, 9, 7], [5, 9, 7, 1, 2])]


def test_a_last_block_is_completed_by_the_answer() -> None:
    """25 tokens of prompt and 17 of answer: blocks 3 and 4 are whole then, the fifth is not and nobody knows it."""
    [(prompt, whole)] = written(asked([1, 2, 90], 25, 17, [3, 4]))
    assert prompt == [1, 2, 3]
    assert whole[:4] == [1, 2, 3, 4]
    assert len(whole) == 5
    assert whole[4] < 0


def test_an_answer_that_ends_with_a_block_needs_no_more() -> None:
    assert written(asked([1, 2, 90], 25, 15, [3, 4])) == [([1, 2, 3], [1, 2, 3, 4])]


def test_an_answer_within_the_last_block_leaves_it_as_it_was() -> None:
    """Nothing is completed: the answer's blocks are known to be none."""
    assert written(asked([1, 2, 90], 25, 3, [])) == [([1, 2, 90], [1, 2, 90])]
    assert written(asked([1, 2], 20, 3, []))[0][0] == [1, 2]


def test_a_tail_that_the_trace_leaves_out_is_unknown() -> None:
    """Some formats name whole blocks only: what is computed of the rest takes room, and is at least the last token."""
    (prompt, whole), (other, _) = written(asked([1, 2], 25, 17, None), asked([1, 2], 25, 17, None))
    assert (prompt[:2], len(prompt), len(whole)) == ([1, 2], 3, 5)
    assert prompt[2] != other[2]
    [(prompt, whole)] = written(asked([], 5, 1, None))
    assert len(prompt) == len(whole) == 1


def test_unknown_answers_are_like_no_other() -> None:
    symbols = Symbols(UNIT)
    wholes = [symbols.written(asked([1, 2], 20, 30, None))[1].tolist() for _ in range(3)]
    assert [whole[:2] for whole in wholes] == [[1, 2]] * 3
    assert len({symbol for whole in wholes for symbol in whole[2:]}) == 9
    assert symbols.unknown_answers == 3
    symbols.written(asked([1, 2], 20, 0, None))
    symbols.written(asked([1, 2], 20, 5, [3]))
    assert symbols.unknown_answers == 3


LARGE = st.integers(0, 2**63 - 1) | st.integers(2**30 - 2, 2**30 + 2) | st.integers(0, 3)


@settings(deadline=None)
@given(st.lists(st.lists(LARGE, min_size=1, max_size=6), min_size=1, max_size=6))
def test_ids_of_any_size_stay_apart(prompts: list[list[int]]) -> None:
    symbols = Symbols(1)
    seen: dict[int, int] = {}
    for prompt in prompts:
        array, _ = symbols.written(asked(prompt, len(prompt), 0, []))
        assert array.dtype == np.int32
        for block, symbol in zip(prompt, array.tolist(), strict=True):
            assert symbol >= 0
            assert seen.setdefault(block, symbol) == symbol
    assert len(set(seen.values())) == len(seen)


# -- token ids -------------------------------------------------------------------------------------------------------


def test_tokens_lie_in_the_upper_half_of_the_vocabulary() -> None:
    prompt, answer = TokenWriter(UNIT, 300).request(asked(range(50), 500, 40, None))
    assert (len(prompt), len(answer)) == (500, 40)
    assert prompt.dtype == answer.dtype == np.int32
    for tokens in (prompt, answer):
        assert tokens.min() >= 150
        assert tokens.max() < 300


def test_a_prompt_has_its_length_whatever_is_known() -> None:
    writer = TokenWriter(UNIT, 1 << 30)
    for ids, output in (([1, 2, 90], []), ([1, 2], []), ([1, 2], None), ([1, 2, 90], None), ([1, 2, 90], [3])):
        prompt, answer = writer.request(asked(ids, 25, 9, output))
        assert (len(prompt), len(answer)) == (25, 9)
    prompt, answer = writer.request(asked([], 3, 0, None))
    assert (len(prompt), len(answer)) == (3, 1)


def test_a_block_that_the_answer_does_not_complete_keeps_its_tokens() -> None:
    writer = TokenWriter(UNIT, 1 << 30)
    first, second = (writer.request(asked([1, 2, 90], 25, 3, []))[0].tolist() for _ in range(2))
    assert first == second


def test_an_answer_is_continued_by_the_next_prompt() -> None:
    writer = TokenWriter(UNIT, 1 << 30)
    prompt, answer = writer.request(asked([1, 2, 90], 25, 17, [3, 4]))
    following, _ = writer.request(asked([1, 2, 3, 4, 5, 6], 60, 1, None))
    both = np.concatenate((prompt, answer))
    assert both[:40].tolist() == following[:40].tolist()
    # The last two tokens of the answer lie in a block that is not known.
    assert len(both) == 42
    assert both[40:].tolist() != following[40:42].tolist()


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("scale", [1, 2, 7])
def test_shorter_prompts_share_as_much(unit: int, scale: int) -> None:
    """Of two requests of a session the shared part shrinks as all lengths do."""
    trace = Generated(Workload(sessions=6, turns=4, system_tokens=64, unit=unit, seed=2, branching=0.3))
    writer, whole = TokenWriter(unit, 1 << 30, scale), TokenWriter(unit, 1 << 30)
    short = [(*writer.request(one), *whole.request(one)) for one in trace]
    # A block becomes a whole number of tokens, so lengths shrink by not quite `scale`.
    factor = unit / max(round(unit / scale), 1) if unit > 1 else scale
    for prompt, answer, long_prompt, long_answer in short:
        assert abs(len(prompt) - len(long_prompt) / factor) <= 1
        assert abs(len(answer) - len(long_answer) / factor) <= 1
        for other, _, long_other, _ in short:
            shared, long_shared = _shared(prompt, other), _shared(long_prompt, long_other)
            assert abs(shared - long_shared / factor) <= 1 + unit / factor


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n
