"""Thirty JSON schemas that differ in kind. What each accepts is bounded, so that every answer comes to its end."""

from __future__ import annotations

from typing import Any

WORD = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties] if required is None else required,
        "additionalProperties": False,
    }


POINT = record(x=DIGIT, y=DIGIT)

SCHEMAS: dict[str, Any] = {
    "person": record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "optional": record(["a"], a=WORD, b=WORD, c=DIGIT),
    "nothing required": record([], a=DIGIT, b=DIGIT),
    "empty object": record(),
    "nested": record(outer=record(inner=record(leaf=WORD))),
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "integer range": {"type": "integer", "minimum": -17, "maximum": 1234},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    "number range": {
        "type": "number",
        "minimum": 0.25,
        "maximum": 0.75,
        "multipleOf": 0.125,
    },  # jsonschema divides: no 0.05
    "multiples": record(n={"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 25}),
    "enum of texts": {"enum": ["red", "grün", "青", 'a "quoted" one']},
    "enum of all kinds": {"enum": [1, 2.5, "three", None, True, {"four": 4}, [5]]},
    "const": record(kind={"const": "circle"}, r=DIGIT),
    "length": {"type": "string", "minLength": 3, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "date": record(day={"type": "string", "format": "date"}),
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "array": {"type": "array", "items": DIGIT, "maxItems": 5},
    "array of objects": {"type": "array", "items": POINT, "minItems": 1, "maxItems": 3},
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
    "tuple": {"type": "array", "prefixItems": [WORD, DIGIT], "items": False, "minItems": 2},
    "any of": {"anyOf": [WORD, DIGIT, {"type": "null"}]},
    "one of by tag": {
        "oneOf": [record(type={"const": "dot"}, at=POINT), record(type={"const": "line"}, start=POINT, end=POINT)]
    },
    "all of": {"allOf": [record([], a=DIGIT, b=DIGIT), {"required": ["b"]}, {"properties": {"a": {"minimum": 5}}}]},
    "type list": record(value={"type": ["boolean", "null"]}),
    "definitions": {**record(a={"$ref": "#/$defs/point"}, b={"$ref": "#/$defs/point"}), "$defs": {"point": POINT}},
    "recursive": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": record(["value"], value=DIGIT, left={"$ref": "#/$defs/tree"}, right={"$ref": "#/$defs/tree"}),
        },
    },
    "dictionary": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,8}$": DIGIT},
        "additionalProperties": False,
        "maxProperties": 3,
    },
}
