"""Anthropic's rules of prompt caching alone, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from longturn.dialects.anthropic_usage import Cached
from longturn.dialects.segments import parse
from longturn.serve.caching.anthropic import CachedPrompt
from longturn.serve.caching.entries import Entries

ALL = 1 << 30
EACH = 2000
"""Tokens of a block."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def entries(clock: Clock) -> Entries:
    return Entries(clock=clock)


def prompt(entries: Entries, marks: dict[int, str], blocks: int = 4, salt: str = "", **body: Any) -> CachedPrompt:
    """A message of blocks with as many tokens each; marks: block -> ttl."""
    content = [
        {"type": "text", "text": f"block {n}", **({"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else {})}
        for n in range(blocks)
        for ttl in [marks.get(n)]
    ]
    request = {"model": "claude-opus-4-8", "messages": [{"role": "user", "content": content}], **body}
    tokens = np.arange(EACH * blocks + 5, dtype=np.int32)
    return CachedPrompt(parse("anthropic", request), tokens, [EACH * (n + 1) for n in range(blocks)], entries, salt)


def test_the_three_billing_positions(entries: Entries):
    marks = {0: "1h", 1: "1h", 3: "5m"}
    assert prompt(entries, marks).began(0) == Cached(0, written_5m=2 * EACH, written_1h=2 * EACH)
    assert prompt(entries, marks).began(ALL) == Cached(read=4 * EACH)
    # A hit in the middle: what lies behind it is written, for an hour up to the last mark of that life.
    assert prompt(entries, {3: "1h", 5: "5m"}, blocks=6).began(ALL) == Cached(4 * EACH, 2 * EACH, 0)


def test_what_the_engine_has_lost_falls_back_to_a_shorter_entry(entries: Entries):
    marks = {0: "5m", 3: "5m"}
    prompt(entries, marks).began(0)
    assert prompt(entries, marks).began(4 * EACH - 1) == Cached(read=EACH, written_5m=3 * EACH)
    assert prompt(entries, marks).began(EACH - 1) == Cached(written_5m=4 * EACH)


def test_each_use_lets_an_entry_live_on(entries: Entries, clock: Clock):
    prompt(entries, {3: "5m"}).began(0)
    for clock.now in (299, 598):
        assert prompt(entries, {3: "5m"}).began(ALL).read == 4 * EACH
    clock.now = 898
    assert prompt(entries, {3: "5m"}).began(ALL) == Cached(written_5m=4 * EACH)


def test_an_hour_outlives_five_minutes(entries: Entries, clock: Clock):
    marks = {0: "1h", 3: "5m"}
    prompt(entries, marks).began(0)
    clock.now = 301
    assert prompt(entries, marks).began(ALL) == Cached(read=EACH, written_5m=3 * EACH)


def test_who_asks_before_the_first_answer_begins_writes_as_well(entries: Entries):
    first, second = prompt(entries, {3: "5m"}), prompt(entries, {3: "5m"})
    assert second.hints[0].stop == 4 * EACH
    assert prompt(entries, {3: "5m"}).began(ALL).read == 0
    assert first.began(0).read == 0
    assert second.began(ALL).read == 4 * EACH


@pytest.mark.parametrize(
    ("model", "cached"), [("claude-opus-4-6", 0), ("claude-opus-4-7", 0), ("claude-opus-4-8", EACH), ("demo", EACH)]
)
def test_the_least_prefix_is_the_models(entries: Entries, model: str, cached: int):
    assert prompt(entries, {0: "5m"}, model=model).began(0).written == cached
    assert len(prompt(entries, {0: "5m"}, model=model).hints) == bool(cached)


def test_pins_last_as_long_as_the_marks(entries: Entries):
    hints = prompt(entries, {1: "1h", 3: "5m"}).hints
    assert [(hint.kind, hint.stop, hint.seconds) for hint in hints] == [
        ("pin", 2 * EACH, 3600.0),
        ("pin", 4 * EACH, 300.0),
    ]
    # What is found without a mark of its own is kept for as long as it was written for.
    prompt(entries, {1: "1h"}).began(0)
    assert [hint.stop for hint in prompt(entries, {3: "5m"}).hints] == [4 * EACH, 2 * EACH]


def test_clients_and_settings_are_kept_apart(entries: Entries):
    prompt(entries, {3: "5m"}).began(0)
    assert prompt(entries, {3: "5m"}, salt="other").began(ALL).read == 0
    assert prompt(entries, {3: "5m"}, tool_choice={"type": "none"}).began(ALL).read == 0
    assert prompt(entries, {3: "5m"}, tool_choice={"type": "auto"}).began(ALL).read == 4 * EACH


def test_without_marks_there_is_nothing(entries: Entries):
    plain = prompt(entries, {})
    assert (plain.hints, plain.began(ALL)) == ([], Cached())
