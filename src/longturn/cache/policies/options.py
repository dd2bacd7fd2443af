"""Options of policies as users write them: `NAME:key=value,...`, checked against the policy's own dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from longturn.errors import ConfigError

T = TypeVar("T")


def tokens(default: int | None, help: str, least: int | None = None) -> Any:
    """A field that counts tokens, so that it shrinks when a symbol stands for several; least: smaller ones are refused
    here, where the policy does not say why itself."""
    return dataclasses.field(default=default, metadata={"help": help, "tokens": True, "least": least})


def choice(default: Any, help: str) -> Any:
    """Any other field of a policy's options."""
    return dataclasses.field(default=default, metadata={"help": help})


def split(text: str) -> tuple[str, dict[str, str]]:
    """`NAME:key=value,...` as name and options. Raises ConfigError where it is not of that form."""
    name, _, rest = text.partition(":")
    given: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or key.strip() in given:
            raise ConfigError(f"{part!r} in {text!r} is no option: write NAME:key=value,key=value, each key once")
        given[key.strip()] = value.strip()
    return name.strip(), given


def read(kind: type[T], given: Mapping[str, Any], policy: str) -> T:
    """An instance of the options dataclass `kind` from texts or values. Raises ConfigError, naming what would do."""
    hints = get_type_hints(kind)
    unknown = sorted(set(given) - set(hints))
    if unknown:
        known = ", ".join(hints) or "none"
        raise ConfigError(f"policy {policy} has no option called {unknown[0]!r}: its options are {known}")
    values = {key: _value(hints[key], value, f"{policy}:{key}") for key, value in given.items()}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        least, value = field.metadata.get("least"), values.get(field.name)
        if least is not None and value is not None and value < least:
            raise ConfigError(f"{policy}:{field.name} is {value}: give at least {least}")
    return kind(**values)


def scaled(options: T, unit: int) -> T:
    """The same options where one symbol stands for `unit` tokens: token counts are divided, rounding up."""
    if unit == 1:
        return options
    assert dataclasses.is_dataclass(options)
    changed = {
        field.name: -(-value // unit)
        for field in dataclasses.fields(options)
        if field.metadata.get("tokens") and (value := getattr(options, field.name)) is not None and value > 0
    }
    return dataclasses.replace(options, **changed)  # type: ignore[type-var]


def _value(kind: Any, value: Any, where: str) -> Any:
    text = str(value).strip()
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ConfigError(f"{where} is {text!r}: choose one of {', '.join(get_args(kind))}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{where} is {text!r}: write true or false")
        return text.lower() == "true"
    if kind is str:
        return text
    if kind == int | None:
        if text.lower() == "none":
            return None
        kind = int
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{where} is {text!r}: write a number") from None
