"""What is sent keeps the trace's sharing, whatever it is scaled to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.lab.live.workload import Grain, content, prepare
from tests.lab.live.servers import shared
from tests.lab.live.traces import Listed, chats, request

WIDE = 1 << 31  # so many token ids that different blocks never get the same ones


def prepared(trace: Listed, **changes: object):  # type: ignore[no-untyped-def]
    given = {"requests": 100, "room": None, "scale": None, "answer": None, "vocab": 32_000, "seed": 1}
    return prepare(trace, **{**given, **changes})  # type: ignore[arg-type]


@given(
    common=st.lists(st.integers(0, 1 << 62), max_size=40),
    one=st.lists(st.integers(0, 1 << 62), min_size=1, max_size=20),
    other=st.lists(st.integers(0, 1 << 62), min_size=1, max_size=20),
    unit=st.sampled_from([1, 16, 512]),
    scale=st.floats(0.001, 1.0),
)
def test_prompts_share_what_their_blocks_share(
    common: list[int], one: list[int], other: list[int], unit: int, scale: float
) -> None:
    grain = Grain.of(unit, scale)
    sent = [
        content(np.array(common + rest, dtype=np.int64), unit * len(common + rest), grain, 7, WIDE).tolist()
        for rest in (one, other)
    ]
    blocks = shared(common + one, common + other)
    whole = blocks * grain.per_block // grain.group
    # Where one prompt is a prefix of the other, its last group may be cut off.
    same = common + one == common + other
    assert shared(*sent) == (len(sent[0]) if same else pytest.approx(whole, abs=1 if grain.group > 1 else 0))
    assert grain.scale <= scale + 1e-6 or grain.group > 1
    assert abs(len(sent[0]) - unit * len(common + one) * grain.scale) < 1


@given(unit=st.sampled_from([1, 64]), scale=st.floats(1e-4, 1.0))
def test_a_grain_is_the_finest_that_fits(unit: int, scale: float) -> None:
    grain = Grain.of(unit, scale)
    assert grain.scale <= scale * (1 + 1e-6)
    assert (grain.per_block, grain.group) == (unit, 1) or grain.scale > scale / 2 * (1 - 1e-6)


def test_content_is_of_the_seed_and_the_salt_and_not_the_traces_own() -> None:
    trace = Listed([request("a", range(1000, 1100)), request("b", range(1000, 1100), salt="tenant")])
    first, again, other = prepared(trace), prepared(trace), prepared(trace, seed=2)
    assert [call.ids.tolist() for call in first.calls] == [call.ids.tolist() for call in again.calls]
    assert shared(first.calls[0].ids.tolist(), other.calls[0].ids.tolist()) <= 2
    assert shared(first.calls[0].ids.tolist(), first.calls[1].ids.tolist()) <= 2
    assert shared(first.calls[0].ids.tolist(), list(range(1000, 1100))) <= 2


@pytest.mark.parametrize("vocab", [64, 300, 32_000])
def test_token_ids_are_inside_the_vocabulary(vocab: int) -> None:
    ids = prepared(Listed([request("a", range(5000))]), vocab=vocab).calls[0].ids
    assert ids.min() >= vocab // 32
    assert ids.max() < vocab
    assert len(set(ids.tolist())) > min(vocab, 5000) // 2


def test_a_partly_filled_block_stays_partly_filled() -> None:
    trace = Listed([request("a", [1, 2, 3], 100, unit=512, tokens=1030)], unit=512)
    assert len(prepared(trace).calls[0].ids) == 1030
    half = prepared(trace, scale=0.5)
    assert (len(half.calls[0].ids), half.calls[0].output_tokens) == (515, 50)
    assert "one token is sent for 2 of the trace" in half.notes
    assert half.notes[0] == "made up for a test"


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("room", [10, 50, 333, 5000, 40_000])
def test_the_longest_request_fits_the_room(unit: int, room: int) -> None:
    lengths = (1600, 320, 32_000)
    trace = Listed([request(str(n), range(n // unit), n // 8, unit=unit) for n in lengths], unit=unit)
    workload = prepared(trace, room=room)
    longest = max(len(call.ids) + call.output_tokens for call in workload.calls)
    assert longest <= room
    assert longest > room / 2 or workload.scale == 1
    if room == 40_000:
        assert workload.scale == 1


def test_answers_are_kept_only_where_later_prompts_repeat_them_token_by_token() -> None:
    assert all(call.output is not None for call in prepared(chats()).calls)
    assert all(call.output is None for call in prepared(chats(), scale=0.5).calls)
    cut = prepared(chats(answer=5), answer=3).calls
    assert {(call.output is None, call.output_tokens) for call in cut} == {(True, 3)}
    call = prepared(chats(sessions=1, turns=2)).calls
    assert call[0].output is not None
    assert call[1].ids.tolist()[: len(call[0].ids) + 5] == call[0].ids.tolist() + call[0].output.tolist()


@pytest.mark.parametrize("scale", [1.0, 0.001])
def test_a_prompt_without_blocks_is_like_no_other(scale: float) -> None:
    trace = Listed([request(name, [], unit=64, tokens=30) for name in "ab"], unit=64)
    first, second = prepared(trace, scale=scale).calls
    assert len(first.ids) == len(second.ids) == (30 if scale == 1 else 1)
    assert first.ids.tolist() != second.ids.tolist()


def test_no_more_than_asked_for_and_nothing_of_nothing() -> None:
    assert [call.index for call in prepared(chats(), requests=4).calls] == [0, 1, 2, 3]
    assert prepared(Listed([]), room=100).calls == []
