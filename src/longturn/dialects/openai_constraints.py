"""What OpenAI's clients can ask of an answer's form, and where clients of vLLM and llama.cpp ask the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import from_json

from longturn.dialects import grammar
from longturn.dialects.grammar import Grammar
from longturn.dialects.openai_messages import Wire
from longturn.errors import RequestError


def _parsed(value: object) -> object:
    """A schema that was sent as text."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        raise ValueError("the text is not valid JSON") from None


Schema = Annotated[dict[str, Any] | bool, BeforeValidator(_parsed)]


class NamedSchema(Wire):
    """A schema as OpenAI takes it. It is enforced either way; strict: what cannot be enforced is an error."""

    schema_: Schema = Field(default_factory=lambda: {"type": "object"}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """OpenAI's `response_format`; `schema` beside `type` is llama.cpp's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError('type "json_schema" needs json_schema: {"name": "...", "schema": {...}}')
        return self

    def grammars(self) -> list[Grammar]:
        """What it asks for: nothing, or one thing."""
        if self.type == "text":
            return []
        if self.type == "json_schema" and self.json_schema is not None:
            named, param = self.json_schema, "response_format.json_schema.schema"
            return [grammar.json_schema(named.schema_, param, strict=named.strict is True)]
        if self.schema_ is not None:
            return [grammar.json_schema(self.schema_, "response_format.schema")]
        return [grammar.json_object("response_format")]


class StructuredOutputs(Wire):
    """vLLM's `structured_outputs`, of which one may be set."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: None = None

    def grammars(self) -> list[Grammar]:
        """What it asks for."""
        found = _asked("structured_outputs.", self.json_, self.regex, self.choice, self.grammar)
        return [*found, grammar.json_object("structured_outputs.json_object")] if self.json_object else found


class Constrained(Wire):
    """The fields that ask for a form of the answer. At most one may."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: Schema | None = None
    grammar: str | None = None

    def answer_grammar(self) -> Grammar | None:
        """The grammar that is asked for, if any. Raises RequestError when there are two, or one makes no sense."""
        asked = _asked("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        if self.response_format is not None:
            asked += self.response_format.grammars()
        if self.structured_outputs is not None:
            asked += self.structured_outputs.grammars()
        if self.json_schema is not None:
            asked.append(grammar.json_schema(self.json_schema, "json_schema"))
        if self.grammar:
            asked.append(grammar.grammar(self.grammar, "grammar"))
        if len(asked) > 1:
            raise RequestError(
                f"{asked[0].param} and {asked[1].param} both say what the answer must be: send one.",
                param=asked[1].param,
            )
        return asked[0] if asked else None


def _asked(
    prefix: str, json: Schema | None, regex: str | None, choice: list[str] | None, text: str | None
) -> list[Grammar]:
    """What vLLM's fields ask for. An empty text is none: clients send one for what they do not use."""
    asked = []
    if json is not None:
        asked.append(grammar.json_schema(json, f"{prefix}json"))
    if regex:
        asked.append(grammar.regex(regex, f"{prefix}regex"))
    if choice is not None:
        asked.append(grammar.choice(choice, f"{prefix}choice"))
    if text:
        asked.append(grammar.grammar(text, f"{prefix}grammar"))
    return asked
