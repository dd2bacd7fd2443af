"""How well tokens are guessed, and how the guess is corrected."""

from __future__ import annotations

import pytest

from longturn.conversation.view.estimate import FILE_TOKENS, Calibration, Estimate
from longturn.conversation.view.fold import fold
from tests.conversation.talk import Talk


def test_tokens_of_each_kind() -> None:
    estimate = Estimate()
    assert estimate.tokens("text", 3_800) == 1_004
    assert estimate.tokens("result", 2_900) == 1_008
    assert estimate.tokens("file", 7) == estimate.tokens("file", 7_000_000) == FILE_TOKENS
    # Text that is no English has more bytes a character, and more tokens.
    talk = Talk()
    talk.user("a" * 100)
    talk.user("語" * 100)
    english, japanese = fold(talk.entries).items[-2:]
    assert japanese.tokens > 2.5 * english.tokens


def test_a_calibrated_estimate_is_close_after_a_few_requests() -> None:
    """A tokenizer with a quarter more tokens than estimated, and a fifth more from some request on."""
    calibration = Calibration()
    assert calibration.scale == 1.0
    for _ in range(4):
        calibration = calibration.with_request(12_500, 10_000)
    assert calibration.scale == pytest.approx(1.25)
    for _ in range(12):
        calibration = calibration.with_request(15_000, 10_000)
    assert calibration.scale == pytest.approx(1.5, rel=0.02)
    assert calibration.with_request(0, 10_000) == calibration.with_request(10_000, 0) == calibration


def test_only_what_is_new_is_estimated() -> None:
    talk = Talk()
    talk.user("x" * 4_000)
    before = fold(talk.entries)
    talk.assistant("y" * 400)
    talk.user("z" * 380)
    after = fold(talk.entries)
    calibration = Calibration().with_request(2 * before.tokens, before.tokens)
    new = sum(item.tokens for item in after.items[-1:])
    assert calibration.expected(after.items) == 2 * after.tokens
    assert calibration.expected(after.items, known=len(after.items) - 1, reported=2_345) == 2_345 + 2 * new
