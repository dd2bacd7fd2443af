"""A miss of our own engine is read as it was written."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.explain.miss import FIXES, Cause, Miss

COUNTS = st.integers(0, 10_000_000)
BY = st.none() | st.sampled_from(["chatcmpl-5 tokens", "from token 7 on"])


@given(cause=st.sampled_from(get_args(Cause)), at=COUNTS, tokens=COUNTS, ago=st.none() | st.floats(0, 1e6), by=BY)
def test_a_miss_is_read_as_it_was_written(
    cause: Cause, at: int, tokens: int, ago: float | None, by: str | None
) -> None:
    read = Miss.read(str(Miss(cause, at, tokens, "device", ago, by)))
    assert read is not None
    assert (read.cause, read.tokens) == (cause, tokens)
    if cause != "never_stored" or tokens:
        assert read.at == at


@pytest.mark.parametrize("text", ["", "routing", "volatile_text at system[0], byte 10", "lost: 5 tokens"])
def test_other_texts_are_none(text: str) -> None:
    assert Miss.read(text) is None


def test_every_cause_can_be_mended_or_is_said_not_to() -> None:
    assert FIXES.keys() == set(get_args(Cause))
