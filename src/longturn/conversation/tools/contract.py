"""A tool, and the box that runs calls of it. Nothing that a model writes can raise: it is told what was wrong."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longturn.conversation.parts import ToolCall, ToolResult
from longturn.errors import LongturnError, ToolError

BUILT_IN = "built in"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave. resource: what was read, if it was something with a name; error: it failed."""

    text: str
    resource: str | None = None
    error: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """name, description, parameters (JSON schema): as models see it; run: does it, and raises LongturnError where it
    cannot; server: where it comes from."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(hash=False)
    run: Callable[[Mapping[str, Any]], Awaitable[Outcome]] = field(hash=False)
    server: str = BUILT_IN

    @property
    def definition(self) -> dict[str, Any]:
        """In OpenAI's form."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class Toolbox:
    """Tools by name. Raises ToolError for two of one name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                other = self._tools[tool.name].server
                raise ToolError(f"{tool.server} and {other} both offer a tool {tool.name!r}: leave one of them out")
            self._tools[tool.name] = tool

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """All of them in OpenAI's form, by name, so that the order of discovery never shows."""
        return [self._tools[name].definition for name in sorted(self._tools)]

    def server(self, name: str) -> str:
        """Where a tool comes from."""
        return self._tools[name].server if name in self._tools else BUILT_IN

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of a call, which is an error in words where it cannot be done."""
        tool = self._tools.get(call.tool)
        try:
            if tool is None:
                known = ", ".join(sorted(self._tools)) or "none"
                raise ToolError(f"there is no tool {call.tool!r}: use one of {known}")
            outcome = await tool.run(_arguments(call.arguments))
        except LongturnError as error:
            outcome = Outcome(str(error), error=True)
        return ToolResult(call.call, outcome.text, outcome.resource, outcome.error)


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are no JSON ({error}): send one object") from None
    if not isinstance(given, dict):
        raise ToolError("the arguments are no JSON object: send one object")
    return given
