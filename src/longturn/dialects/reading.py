"""From the bytes of a body to a checked request of any dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from longturn.errors import RequestError

R = TypeVar("R", bound=BaseModel)


def object_of(body: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """The body as an object. Raises RequestError where it is none."""
    if isinstance(body, bytes):
        try:
            body = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(body, Mapping):
        raise RequestError("The body must be a JSON object.")
    return body


def refuse(body: Any, unsupported: Mapping[str, str]) -> None:
    """Raises RequestError where a body has one of the fields that are `unsupported` (field -> what to do instead)."""
    for name, advice in unsupported.items():
        if isinstance(body, Mapping) and body.get(name) not in (None, False):
            raise RequestError(f"{name} is not supported: {advice}.", param=name)


def read(kind: type[R], body: bytes | Mapping[str, Any]) -> R:
    """The body as a `kind`. Raises RequestError with the offending `param` and one readable sentence."""
    body = object_of(body)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _readable(error, body) from None


def _readable(error: ValidationError, body: Mapping[str, Any]) -> RequestError:
    """The first finding as one sentence. It names the type of what was sent, never the content."""
    found = error.errors(include_url=False)[0]
    steps = _steps(found["loc"], body)
    if found["type"] == "missing":
        steps.append(found["loc"][-1])
    param = ""
    for step in steps:
        param += f"[{step}]" if isinstance(step, int) else f".{step}" if param else step
    if found["type"] == "missing":
        message = f"{param} is missing: add it to the request."
    elif found["type"] == "value_error":
        message = f"{param}: {found['ctx']['error']}."
    else:
        message = f"{param}: {found['msg'].removeprefix('Input ')} (got {_json_type(found['input'])})."
    return RequestError(message, param=param or None)


def _steps(loc: tuple[int | str, ...], body: Any) -> list[int | str]:
    """The steps of `loc` that lead through `body`, without the names that pydantic gives to the members of a union.

    Such a name may also be that of a field: then what leads further counts.
    """
    if not loc:
        return []
    step, rest = loc[0], loc[1:]
    skipped = _steps(rest, body)
    if isinstance(body, Mapping):
        inside = step in body
    else:
        inside = isinstance(body, list) and isinstance(step, int) and step < len(body)
    taken = [step, *_steps(rest, body[step])] if inside else []
    return taken if len(taken) >= len(skipped) else skipped


def _json_type(value: object) -> str:
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
