"""Days and times in JSON schemas, held to the calendar.

llguidance enforces `format` by months of one length: it lets an answer say 2023-02-29, the year 0 and the second 60,
which datetime, pydantic and jsonschema all refuse, and a second have digits without end. A `pattern` beside the format
leaves those out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
# Which days the other months have is the format's to say, and where the fields end.
_DAY = f"({_YEAR}-(0[13-9]|1[0-2]|02-[01]|02-2[0-8])|{_LEAP}-02-29)"
# Microseconds at most: models that once began with digits go on with them.
_TIME = r"[0-9]{2}:[0-9]{2}:[0-5][0-9](\.[0-9]{1,6})?[Zz+-]"
PATTERNS = {"date": f"^{_DAY}", "time": f"^{_TIME}", "date-time": f"^{_DAY}[0-9-]*[Tt]{_TIME}"}

# Keywords whose names below are the author's, and those whose value is no schema.
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_DATA = frozenset(("const", "enum", "default", "examples"))


def on_the_calendar(schema: Any) -> Any:
    """`schema` with a pattern beside every format that is a date, a time or both; mutates nothing.

    What is no schema stays as it is. Raises RecursionError for one that is nested too deeply.
    """
    if isinstance(schema, list):
        return [on_the_calendar(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _below(key, value) for key, value in schema.items()}
    form = made.get("format")
    pattern = PATTERNS.get(form) if isinstance(form, str) else None
    if pattern is None:
        return made
    if "pattern" not in made:
        return {**made, "pattern": pattern}
    others = made.get("allOf")
    return {**made, "allOf": [*(others if isinstance(others, list) else ()), {"pattern": pattern}]}


def _below(key: str, value: Any) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: on_the_calendar(item) for name, item in value.items()}
    return on_the_calendar(value)
