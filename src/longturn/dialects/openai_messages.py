"""Messages and tools of OpenAI Chat Completions, and their form for a Hugging Face chat template."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from longturn.dialects.grammar import ToolSchema


class Wire(BaseModel):
    """Base of all wire models: types are exact (true is not 1), what is unknown is ignored (clients send much)."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


def _text(content: object) -> object:
    """A content string as it is; a list of text parts joined by line breaks, as other servers do."""
    if not isinstance(content, list):
        return content
    return "\n".join(_part(part) for part in content)


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
    if isinstance(text, str):
        return text
    if isinstance(kind, str) and kind not in ("text", "refusal"):
        raise ValueError(f"parts of type {kind!r} are not supported: this server reads text only")
    raise ValueError('each part must look like {"type": "text", "text": "..."}')


Text = Annotated[str, BeforeValidator(_text)]


class FunctionCall(Wire):
    """A function's name and its arguments as a JSON string."""

    name: str
    arguments: str = "{}"


class MessageToolCall(Wire):
    """A tool call that an assistant message made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Wire):
    """One message. List content is already joined to one string."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing: only an assistant message with tool_calls may go without")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: developer is system, arguments are an object where they are one."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content or "",
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": arguments_of(call.function.arguments)},
                }
                for call in self.tool_calls
            ]
        return message


def arguments_of(text: str) -> Any:
    """The arguments of a call for a template: an object. A model's broken ones stay as they are: it must go on."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


class Function(Wire):
    """A function that the model may call; `parameters` is a JSON schema, which with `strict` every call must fit."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def called(self) -> ToolSchema:
        """What a call must look like."""
        return ToolSchema(self.name, self.parameters, self.strict is True)


class Tool(Wire):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it, with the fields in one order whatever the client's."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})
