"""Functions that Gemini's requests declare, and how the model may call them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from longturn.dialects.gemini_content import Google
from longturn.dialects.gemini_schema import json_schema
from longturn.dialects.grammar import ToolSchema

Json = dict[str, Any]


class FunctionDeclaration(Google):
    """A function that the model may call; `parameters` is Google's form of a schema, the other a JSON Schema."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: Json | None = None
    parameters_json_schema: Json | None = None

    @property
    def schema_of_arguments(self) -> Json | None:
        """The JSON Schema of its arguments."""
        return json_schema(self.parameters) if self.parameters else self.parameters_json_schema

    def for_template(self) -> Json:
        """The function as chat templates expect it."""
        function: Json = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema_of_arguments or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}

    def called(self, *, strict: bool) -> ToolSchema:
        """What a call must look like. strict: see `ToolSchema`."""
        return ToolSchema(self.name, self.schema_of_arguments, strict)


class Tool(Google):
    """Some functions. Google's own tools (search, code execution) are refused."""

    function_declarations: list[FunctionDeclaration] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _functions_only(cls, value: Any) -> Any:
        known = ("function_declarations", "functionDeclarations")
        for name in value if isinstance(value, dict) else ():
            if name not in known and value[name] is not None:
                raise ValueError(f"{to_camel(name)} is not supported: declare functions and run them yourself")
        return value


class FunctionCallingConfig(Google):
    """AUTO lets the model choose; ANY makes it call; NONE keeps it from calling; VALIDATED holds calls to schemas."""

    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(Google):
    """How tools may be used."""

    function_calling_config: FunctionCallingConfig | None = None
