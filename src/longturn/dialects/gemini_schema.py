"""Google's form of a schema as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Google's name -> JSON Schema's, where the two differ in more than their spelling.
NAMES = {"defs": "$defs", "ref": "$ref"}
SNAKE = {
    "any_of": "anyOf",
    "additional_properties": "additionalProperties",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "property_ordering": "propertyOrdering",
}
# Google writes 64-bit numbers as strings.
WHOLE = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
FORMATS = frozenset(("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
"""Formats of texts that JSON Schema knows; Google's others (int32, double, enum) say nothing that type does not."""


def json_schema(schema: Mapping[str, Any], *, closed: bool = False) -> dict[str, Any]:
    """`schema` as JSON Schema: types in lower case, `nullable` as a type, properties in the order asked for.

    What is JSON Schema already stays as it is. closed: an object has no properties but those that are named, unless the
    schema says otherwise, as it is with Google's structured answers.
    """
    given = {NAMES.get(key, SNAKE.get(key, key)): value for key, value in schema.items() if value is not None}
    nullable, ordering = given.pop("nullable", False), given.pop("propertyOrdering", None)
    given.pop("example", None)
    if given.get("format") not in FORMATS:
        given.pop("format", None)
    kind = given.get("type")
    if isinstance(kind, str):
        given["type"] = kind.lower()
        if kind == "TYPE_UNSPECIFIED":
            del given["type"]
    for key in WHOLE & given.keys():
        if isinstance(given[key], str) and given[key].isdecimal():
            given[key] = int(given[key])
    for key, value in given.items():
        if key in ("items", "additionalProperties"):
            given[key] = _schema(value, closed)
        elif key in ("properties", "$defs") and isinstance(value, Mapping):
            given[key] = {name: _schema(item, closed) for name, item in _ordered(value, ordering).items()}
        elif key == "anyOf" and isinstance(value, list):
            given[key] = [_schema(item, closed) for item in value]
    if closed and given.get("properties"):
        given.setdefault("additionalProperties", False)
    return _or_null(given) if nullable is True else given


def _schema(value: Any, closed: bool) -> Any:
    return json_schema(value, closed=closed) if isinstance(value, Mapping) else value


def _ordered(properties: Mapping[str, Any], ordering: Any) -> Mapping[str, Any]:
    if not isinstance(ordering, list):
        return properties
    first = {name: properties[name] for name in ordering if isinstance(name, str) and name in properties}
    return {**first, **properties}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema
