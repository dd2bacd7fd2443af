"""Which tools the model may or must call, as OpenAI's two dialects say it, and what that makes of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import model_validator

from longturn.dialects import grammar
from longturn.dialects.grammar import CallForm, Grammar, ToolSchema
from longturn.dialects.openai_messages import Wire
from longturn.errors import RequestError

FORMS = 'use "none", "auto", "required", a function\'s name as {"type": "function", ...}, or allowed_tools'


class ToolChoice(Wire):
    """names: the only tools that may be called, None for all of them; `named` is the one that must be."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_wire(cls, value: Any) -> Any:
        if value in ("none", "auto", "required"):
            return {"mode": value}
        if name := _name(value):
            return {"mode": "named", "names": (name,)}
        if isinstance(value, dict) and value.get("type") == "allowed_tools":
            # Chat Completions has what Responses has one level deeper.
            inner = value.get("allowed_tools", value)
            tools = inner.get("tools") if isinstance(inner, dict) else None
            if isinstance(tools, list) and tools and inner.get("mode") in ("auto", "required"):
                names = tuple(map(_name, tools))
                if all(names):
                    return {"mode": inner["mode"], "names": names}
        raise ValueError(FORMS)

    def check(self, tools: Sequence[str]) -> None:
        """Raises RequestError for tools that must be called and are not there."""
        if self.mode == "required" and not tools:
            raise RequestError('tool_choice "required" needs tools: send at least one.', param="tool_choice")
        for name in self.names or ():
            if name not in tools:
                raise RequestError(f"tool_choice names {name!r}, which is not among the tools.", param="tool_choice")


def grammar_of(
    answer: Grammar | None, tools: Sequence[ToolSchema], choice: ToolChoice | None, *, form: CallForm, several: bool
) -> Grammar | None:
    """What an answer must fit, None for free text. form: how the model writes calls of tools.

    A call that is forced leaves no room for another answer. Calls that are free may stand beside an answer in JSON;
    with strict tools among them, or not all of them allowed, they are held to those wherever they occur in the text.
    """
    if not tools or (choice and choice.mode == "none"):
        return answer
    names = choice.names if choice else None
    allowed = [tool for tool in tools if names is None or tool.name in names]
    if choice and choice.mode in ("required", "named"):
        return grammar.tool_calls(allowed, "tools", form=form, several=several and choice.mode == "required")
    if answer is not None:
        return grammar.answer_or_tool_calls(answer, allowed, "tools", form=form, several=several)
    if form == "tagged" and (names is not None or any(tool.strict for tool in allowed)):
        return grammar.text_with_tool_calls(allowed, "tools")
    return None


def _name(value: Any) -> str | None:
    """The name in {"type": "function", "function": {"name": ...}} or {"type": "function", "name": ...}."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return None
    inner = value.get("function", value)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) and name else None
