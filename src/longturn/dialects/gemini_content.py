"""Contents and parts of Gemini's requests, and their form for a chat template."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from longturn.dialects.openai_messages import Wire

Json = dict[str, Any]

UNSUPPORTED = {
    "inline_data": "this server reads text only",
    "file_data": "this server reads text only",
    "executable_code": "this server runs no code",
    "code_execution_result": "this server runs no code",
    "tool_call": "this server runs no tools of its own",
    "tool_response": "this server runs no tools of its own",
}


class Google(Wire):
    """Base of Google's messages. As in all JSON of protocol buffers, fields may be spelled in camelCase and snake_case,
    null is the same as absent, and what is unknown is ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_alias=True, validate_by_name=True, serialize_by_alias=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: item for key, item in value.items() if item is not None}
        return value


def _listed(value: object) -> object:
    """A single message where a list is due, as Google takes it."""
    return [value] if isinstance(value, dict) else value


class FunctionCall(Google):
    """A call that the model made."""

    id: str | None = None
    name: str = Field(min_length=1)
    args: Json | None = None


class FunctionResponse(Google):
    """What a function gave."""

    id: str | None = None
    name: str = Field(min_length=1)
    response: Json | None = None

    @property
    def text(self) -> str:
        """The result as a text: what is under `output` or `result` if there is nothing else, as the SDKs write it."""
        value: Any = self.response or {}
        if len(value) == 1 and (key := next(iter(value))) in ("output", "result"):
            value = value[key]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Part(Google):
    """One part of a content: a text, a function call or a function's response."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Any) -> Any:
        for name, why in UNSUPPORTED.items():
            if isinstance(value, dict) and (value.get(name) or value.get(to_camel(name))) is not None:
                raise ValueError(f"parts with {to_camel(name)} are not supported: {why}")
        return value

    @model_validator(mode="after")
    def _has_one_kind(self) -> Part:
        kinds = sum(value is not None for value in (self.text, self.function_call, self.function_response))
        if kinds > 1 or (kinds == 0 and self.thought is None and self.thought_signature is None):
            raise ValueError("a part must have text, functionCall or functionResponse, and only one of them")
        return self


Parts = Annotated[list[Part], BeforeValidator(_listed)]


class Content(Google):
    """What one side said. Without a role it is the user."""

    role: Literal["user", "model", "function", "tool", "system", ""] | None = None
    parts: Parts | None = None

    @property
    def words(self) -> str:
        """The texts of a content that has no calls."""
        return "\n".join(part.text for part in self.parts or () if part.text and not part.thought)


Contents = Annotated[list[Content], BeforeValidator(_listed)]


def messages(system: Content | None, contents: Sequence[Content]) -> list[Json]:
    """The messages for a chat template.

    Neighbours of one side become one message. The SDKs keep each chunk of a streamed answer as a content of its own, so
    the model's texts are joined as they are, and the conversation is again what was generated. Thoughts are left out.
    Calls without an id are numbered; a response without one answers the first open call of its function.
    """
    found: list[Json] = []
    if system is not None and system.words:
        found.append({"role": "system", "content": system.words})
    numbers = itertools.count()
    waiting: list[tuple[str, str]] = []
    for content in contents:
        side = "assistant" if content.role == "model" else "user"
        for part in content.parts or ():
            if part.function_call is not None:
                call = part.function_call
                id = call.id or f"call_{next(numbers)}"
                waiting.append((call.name, id))
                function = {"name": call.name, "arguments": call.args or {}}
                message = _last(found, "assistant")
                message.setdefault("tool_calls", []).append({"id": id, "type": "function", "function": function})
            elif part.function_response is not None:
                response = part.function_response
                id = response.id or next((id for name, id in waiting if name == response.name), response.name)
                waiting = [(name, other) for name, other in waiting if other != id]
                found.append(
                    {"role": "tool", "name": response.name, "tool_call_id": id, "content": response.text},
                )
            elif part.text and not part.thought:
                message = _last(found, side)
                between = "\n" if side == "user" and message["content"] else ""
                message["content"] += between + part.text
    return found


def _last(found: list[Json], role: str) -> Json:
    """The last message if it is of that role, else a new one."""
    if not found or found[-1]["role"] != role:
        found.append({"role": role, "content": ""})
    return found[-1]
