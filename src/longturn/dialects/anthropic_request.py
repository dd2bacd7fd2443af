"""Requests of Anthropic's Messages, in both versions of the API that its SDKs use."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from longturn.dialects import grammar
from longturn.dialects.anthropic_content import CacheControl, Document, Message, Text, Texts, ToolResult, ToolUse
from longturn.dialects.anthropic_edits import ContextManagement
from longturn.dialects.grammar import CallForm, Grammar, ToolSchema
from longturn.dialects.openai_messages import Wire
from longturn.dialects.reading import read
from longturn.errors import RequestError

OLD, NEW = "2023-06-01", "2026-10-21"
VERSIONS = (OLD, NEW)
"""Versions of the API. The newer one takes no sampling settings, and is stricter with some blocks."""

# Left unanswered these would change what the client believes it gets, so they are refused instead of ignored.
UNSUPPORTED = {
    "container": "there is no code execution here, leave it out",
    "mcp_servers": "connect to MCP servers in the client and send their tools",
    "fallbacks": "one model is served here",
}


class Tool(Wire):
    """A tool that the client carries out."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_the_clients(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise ValueError(f"tools of type {kind!r} are not offered by this server: describe one with input_schema")
        return value

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}

    def called(self) -> ToolSchema:
        """What a call must look like."""
        return ToolSchema(self.name, self.input_schema, self.strict is True)


class ToolChoice(Wire):
    """How the model may use tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Wire):
    """Whether the model shall think, where its chat template knows how to say so."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None


class Format(Wire):
    """What an answer must look like."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Wire):
    """Settings of the answer. effort: accepted, and part of what is cached, as with the provider."""

    effort: str | None = None
    format: Format | None = None


class Diagnostics(Wire):
    """The answer whose request this one shall be compared with; None in the first one."""

    previous_message_id: str | None = None


class OnDemand(Wire):
    """Compact the conversation now, and do nothing else."""

    type: Literal["summarize"]
    instructions: str | None = None


def _stops(value: object) -> object:
    if isinstance(value, list) and not all(isinstance(stop, str) and stop.strip() for stop in value):
        raise ValueError("each stop sequence must be a string that contains non-whitespace")
    return value


class CountRequest(Wire):
    """POST /v1/messages/count_tokens: all that makes a prompt."""

    model: str
    messages: list[Message] = Field(min_length=1)
    system: Texts = Field(default=[])
    tools: list[Tool] = Field(default=[])
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Any) -> Any:
        for name, advice in UNSUPPORTED.items():
            if isinstance(value, Mapping) and value.get(name):
                raise RequestError(f"{name} is not supported: {advice}.", param=name)
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> CountRequest:
        _check_turns(self.messages)
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise RequestError("Tool names must be unique: rename one of those that share a name.", param="tools")
        choice = self.tool_choice
        if choice and choice.type in ("any", "tool") and not names:
            raise RequestError(f"tool_choice {choice.type!r} needs tools: send at least one.", param="tool_choice")
        if choice and choice.type == "tool" and choice.name not in names:
            raise RequestError(f"tool_choice names {choice.name!r}, which is not among the tools.", param="tool_choice")
        return self

    @property
    def begun(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].role == "assistant"

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools, so that its answer is searched for calls."""
        return bool(self.tools) and not (self.tool_choice and self.tool_choice.type == "none")

    @property
    def several_calls(self) -> bool:
        """Whether an answer may hold more than one call."""
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)


class MessagesRequest(CountRequest):
    """POST /v1/messages. max_tokens 0: compute the prompt for the cache, and answer nothing."""

    max_tokens: int = Field(ge=0)
    stream: bool | None = None
    stop_sequences: Annotated[list[str], BeforeValidator(_stops), Field(max_length=16)] = Field(default=[])
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    diagnostics: Diagnostics | None = None
    compaction: OnDemand | None = None

    @model_validator(mode="after")
    def _warms_only(self) -> MessagesRequest:
        choice, thinking = self.tool_choice, self.thinking
        if thinking and thinking.type == "enabled":
            budget = thinking.budget_tokens
            if budget is None or budget < 1024 or (self.max_tokens and budget >= self.max_tokens):
                raise RequestError(
                    "thinking.budget_tokens must be at least 1024 and less than max_tokens.", param="thinking"
                )
        if self.compaction and self.context_management:
            raise RequestError("compaction cannot be combined with context_management.", param="compaction")
        if self.compaction and self.begun:
            raise RequestError("compaction needs a conversation that ends with a user message.", param="compaction")
        if self.max_tokens == 0:
            for refused, name in (
                (self.stream, "stream: true"),
                (thinking and thinking.type == "enabled", 'thinking.type "enabled"'),
                (self.format, "output_config.format"),
                (choice and choice.type in ("any", "tool"), "a tool_choice that forces a call"),
            ):
                if refused:
                    raise RequestError(f"max_tokens 0 cannot be combined with {name}.", param="max_tokens")
        return self

    @property
    def format(self) -> Format | None:
        """What the answer must look like, from the field's old place or the new one."""
        return (self.output_config and self.output_config.format) or self.output_format

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for the engine's SamplingParams but for the length and the grammar."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {"stop": tuple(self.stop_sequences), **{k: value for k, value in given.items() if value is not None}}

    def grammar_for(self, form: CallForm) -> Grammar | None:
        """What the answer must fit, None for free text. form: how the model writes calls of tools."""
        wanted, choice = self.format, self.tool_choice
        answer = grammar.json_schema(wanted.schema_, "output_config.format.schema") if wanted else None
        if not self.uses_tools:
            return answer
        schemas, several = [tool.called() for tool in self.tools], self.several_calls
        if choice and choice.type in ("any", "tool"):
            chosen = [schema for schema in schemas if choice.name in (None, schema.name)]
            return grammar.tool_calls(chosen, "tools", form=form, several=several and choice.type == "any")
        if answer is not None:
            return grammar.answer_or_tool_calls(answer, schemas, "tools", form=form, several=several)
        if form == "tagged" and any(schema.strict for schema in schemas):
            return grammar.text_with_tool_calls(schemas, "tools")
        return None


def parse(body: Mapping[str, Any], version: str = OLD) -> MessagesRequest:
    """Parse a request. Raises RequestError with the offending `param` and one readable sentence."""
    if version == NEW:
        for name in ("temperature", "top_p", "top_k"):
            if body.get(name) is not None:
                raise RequestError(f"{name} is not supported by API version {NEW}: leave it out.", param=name)
    return _strict(read(MessagesRequest, body), version)


def parse_count(body: Mapping[str, Any], version: str = OLD) -> CountRequest:
    """Parse a request to count. Raises RequestError with the offending `param` and one readable sentence."""
    return _strict(read(CountRequest, body), version)


R = TypeVar("R", bound=CountRequest)


def _strict(request: R, version: str) -> R:
    if version != NEW:
        return request
    for number, message in enumerate(request.messages):
        for block in message.content:
            if message.role == "assistant" and isinstance(block, Document):
                raise RequestError(f"messages[{number}]: a document cannot be in an assistant message.")
            if message.role == "user" and isinstance(block, Text) and block.citations:
                raise RequestError(f"messages[{number}]: citations cannot be set on a user's text.")
    return request


def _check_turns(messages: list[Message]) -> None:
    """Raises RequestError where turns are empty, or calls and results do not belong together."""
    for number, message in enumerate(messages):
        last = number == len(messages) - 1
        if not message.content and not (last and message.role == "assistant"):
            raise RequestError(f"messages[{number}]: only a final assistant message may be empty.", param="messages")
    calls: set[str] = set()
    for role, turns in groupby((m for m in messages if m.role != "system"), key=lambda message: message.role):
        blocks = [block for message in turns for block in message.content]
        results = {block.tool_use_id for block in blocks if isinstance(block, ToolResult)}
        if unknown := results - calls:
            raise RequestError(
                f"tool_result for {min(unknown)!r} answers no tool_use of the message before it.", param="messages"
            )
        if role == "user" and (open_calls := calls - results):
            raise RequestError(
                f"tool_use {min(open_calls)!r} has no tool_result in the message after it: send one.", param="messages"
            )
        calls = {block.id for block in blocks if isinstance(block, ToolUse)}
    if calls:
        raise RequestError("The last message calls a tool: send the tool's result after it.", param="messages")
    final = messages[-1].content[-1] if messages[-1].role == "assistant" and messages[-1].content else None
    if isinstance(final, Text) and final.text != final.text.rstrip():
        raise RequestError("The final assistant message cannot end with white space: trim it.", param="messages")
