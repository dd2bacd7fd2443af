"""What a schema calls a date is one that Python, pydantic and jsonschema take."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.dialects.dates import PATTERNS, on_the_calendar
from longturn.dialects.grammar import json_schema
from longturn.engine.constraint import Grammars
from tests.tiny_model import VOCAB, build_tiny_tokenizer

TOKENIZER = build_tiny_tokenizer()
DAY, NOON = {"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCAB, (256, 258))


def fits(grammars: Grammars, schema: dict[str, Any], value: Any) -> bool:
    answer = grammars.start(json_schema(schema, "response_format"))
    for token in TOKENIZER.encode(json.dumps(value)):
        mask = answer.mask(VOCAB)
        if mask is None or not mask[token]:
            return False
        answer.advance(token)
    mask = answer.mask(VOCAB)
    return mask is not None and bool(mask[256])


@given(st.dates())
def test_every_day_of_the_calendar_fits(day: date) -> None:
    assert re.match(PATTERNS["date"], day.isoformat())
    assert re.match(PATTERNS["date-time"], f"{day.isoformat()}T23:59:59Z")


@given(st.integers(1, 9999))
def test_a_february_has_the_days_of_its_year(year: int) -> None:
    last = date(year, 3, 1) - timedelta(days=1)
    assert bool(re.match(PATTERNS["date"], f"{year:04}-02-29")) == (last.day == 29)


@pytest.mark.parametrize("more", [{}, {"pattern": "^...[34]"}, {"pattern": "^...[34]", "allOf": [{"minLength": 1}]}])
def test_answers_keep_to_the_calendar(grammars: Grammars, more: dict[str, Any]) -> None:
    good, bad = ["2024-02-29", "2023-12-31", "0003-01-01"], ["2023-02-29", "0000-04-03", "2023-04-31", "2023-02-30"]
    for said in good:
        assert fits(grammars, DAY | more, said), said
        assert fits(grammars, NOON | more, f"{said}T12:00:59.5+01:00"), said
    for said in bad:
        assert not fits(grammars, DAY | more, said), said
        assert not fits(grammars, NOON | more, f"{said}T12:00:00Z"), said
    assert not fits(grammars, NOON | more, "2023-12-31T23:59:60Z")


def test_times_have_sixty_seconds(grammars: Grammars) -> None:
    assert fits(grammars, {"type": "string", "format": "time"}, "23:59:59Z")
    assert fits(grammars, {"type": "string", "format": "time"}, "23:59:59.123456-01:00")
    assert not fits(grammars, {"type": "string", "format": "time"}, "23:59:60Z")
    assert not fits(grammars, {"type": "string", "format": "time"}, "23:59:59.1234567Z")


def test_only_schemas_are_changed() -> None:
    held = on_the_calendar(DAY)
    assert held == DAY | {"pattern": PATTERNS["date"]} != DAY
    given = {
        "properties": {"format": {"const": DAY}, "enum": DAY, "when": {"anyOf": [DAY, {"type": "null"}]}},
        "items": DAY,
        "default": DAY,
        "enum": [DAY],
        "$defs": {"day": DAY},
        "format": ["date"],
    }
    before = json.dumps(given)
    assert on_the_calendar(given) == {
        "properties": {"format": {"const": DAY}, "enum": held, "when": {"anyOf": [held, {"type": "null"}]}},
        "items": held,
        "default": DAY,
        "enum": [DAY],
        "$defs": {"day": held},
        "format": ["date"],
    }
    assert json.dumps(given) == before
    assert on_the_calendar(False) is False


def test_records_of_many_dates_compile(grammars: Grammars) -> None:
    fields = {f"at_{n}": NOON for n in range(180)}
    record = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    assert fits(grammars, record, dict.fromkeys(fields, "2024-02-29T12:00:00Z"))
