"""From the bytes of a body to a checked request, and from what is wrong with it to one readable sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from longturn.errors import RequestError


class Wire(BaseModel):
    """Base of all wire models: types are exact (true is not 1), what is unknown is ignored (clients send much)."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


W = TypeVar("W", bound=Wire)


def json_object(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises RequestError where it is none."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    return value


def checked(kind: type[W], body: Mapping[str, Any]) -> W:
    """The body as a request. Raises RequestError with the offending `param` and one readable sentence."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _readable(error) from None


def _readable(error: ValidationError) -> RequestError:
    """The first finding as one sentence. It names the type of what was sent, never the content."""
    found = error.errors(include_url=False)[0]
    param = ""
    for step in found["loc"]:
        param += f"[{step}]" if isinstance(step, int) else f".{step}" if param else step
    if found["type"] == "missing":
        message = f"{param} is missing: add it to the request."
    elif found["type"] == "value_error":
        message = f"{param}: {found['ctx']['error']}." if param else f"{found['ctx']['error']}."
    else:
        message = f"{param}: {found['msg'].removeprefix('Input ')} (got {_json_type(found['input'])})."
    return RequestError(message, param=param or None)


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
