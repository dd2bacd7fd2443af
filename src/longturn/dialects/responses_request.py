"""Requests of OpenAI's Responses: an answer, and what of it counts tokens or compacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from longturn.dialects import grammar, responses_items
from longturn.dialects.grammar import CallForm, Grammar
from longturn.dialects.openai_caching import Caching
from longturn.dialects.openai_constraints import Schema
from longturn.dialects.openai_messages import Function, Wire
from longturn.dialects.openai_tools import ToolChoice, grammar_of
from longturn.dialects.reading import object_of, read, refuse
from longturn.dialects.responses_items import Item
from longturn.dialects.talk import Talk
from longturn.errors import RequestError

# Left unanswered these would change what the client believes it gets, so they are refused instead of ignored.
UNSUPPORTED = {
    "background": "wait for the answer, or stream it",
    "prompt": "send the prompt's text as instructions and input",
}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
LOGPROBS = "message.output_text.logprobs"


def _as_items(given: Any) -> Any:
    """A text is shorthand for one user message; nothing at all is allowed where something is to be continued."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [] if given is None else given


def _functions_only(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"tools of type {kind!r} are not supported: this server runs none itself, send functions")
    return tool


class Tool(Function):
    """A function that the model may call."""

    type: Literal["function"]

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates expect it, with the fields in one order whatever the client's."""
        return {"type": "function", "function": self.model_dump(exclude_none=True, exclude={"strict", "type"})}


class Format(Wire):
    """What the text of an answer must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Format:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError('type "json_schema" needs a schema beside it')
        return self

    def grammar(self) -> Grammar | None:
        """The same as a grammar."""
        if self.schema_ is not None and self.type == "json_schema":
            return grammar.json_schema(self.schema_, "text.format.schema", strict=self.strict is True)
        return grammar.json_object("text.format") if self.type == "json_object" else None


class TextConfig(Wire):
    """How the answer's text shall be."""

    format: Format = Format()
    verbosity: Literal["low", "medium", "high"] | None = None


class Compact(Wire):
    """When the conversation shall be compacted before it is answered."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1)] | None = None


class ConversationRequest(Wire):
    """POST /v1/conversations and what lies below it."""

    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


def _id_of(given: Any) -> Any:
    return given.get("id", given) if isinstance(given, dict) else given


class ResponsesRequest(Caching):
    """POST /v1/responses. A field that is None was not sent. `input` are the items of this request alone."""

    model: str
    input: Annotated[list[Item], BeforeValidator(_as_items)] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Annotated[str, BeforeValidator(_id_of)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    tools: list[Annotated[Tool, BeforeValidator(_functions_only)]] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig = TextConfig()
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[Compact] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    session: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    priority: int | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Any) -> Any:
        refuse(value, UNSUPPORTED)
        return value

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ResponsesRequest:
        if self.tool_choice:
            self.tool_choice.check([tool.name for tool in self.tools or ()])
        if self.conversation and self.previous_response_id:
            message = "conversation and previous_response_id both say what came before: send one of them."
            raise RequestError(message, param="conversation")
        if not self.input and not (self.instructions or self.conversation or self.previous_response_id):
            raise RequestError("input is missing: send a text, or a list of items.", param="input")
        return self

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools, so that its answer is searched for calls."""
        return bool(self.tools) and not (self.tool_choice and self.tool_choice.mode == "none")

    @property
    def logprobs(self) -> bool:
        """Whether the answer's tokens shall come with their logprobs."""
        return LOGPROBS in (self.include or ())

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for the engine's SamplingParams, without length and grammar; ranges unchecked."""
        sent = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        return {**sent, "logprobs": self.top_logprobs or 0} if self.logprobs else sent

    def grammar_for(self, form: CallForm) -> Grammar | None:
        """What the answer must fit, None for free text. form: how the model writes calls of tools."""
        schemas = [tool.called() for tool in self.tools or ()]
        several = self.parallel_tool_calls is not False
        return grammar_of(self.text.format.grammar(), schemas, self.tool_choice, form=form, several=several)

    def talk(self) -> Talk:
        """The conversation for a chat template."""
        head = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        messages = [*head, *responses_items.messages(self.input)]
        tools = [tool.for_template() for tool in self.tools or ()] or None
        return Talk(messages, tools, self.chat_template_kwargs or {})


def parse(body: bytes | Mapping[str, Any]) -> ResponsesRequest:
    """Parse a request. Raises RequestError with the offending `param` and one readable sentence."""
    return read(ResponsesRequest, body)


def parse_conversation(body: bytes) -> tuple[list[dict[str, Any]], ConversationRequest]:
    """The items of a body as they were sent, and all of it, checked. Raises as `parse` does."""
    given = object_of(body or b"{}")
    request = read(ConversationRequest, given)
    return given.get("items") or [], request
