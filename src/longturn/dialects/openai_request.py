"""Requests of OpenAI Chat Completions and Completions, with the extensions that vLLM's and llama.cpp's users expect.

Types are checked here; ranges by the engine's sampling parameters, which are the same for every dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from longturn.dialects.grammar import CallForm, Grammar
from longturn.dialects.openai_caching import Caching
from longturn.dialects.openai_constraints import Constrained
from longturn.dialects.openai_messages import Message, Tool, Wire
from longturn.dialects.openai_tools import ToolChoice, grammar_of
from longturn.dialects.reading import read, refuse
from longturn.dialects.talk import Talk
from longturn.errors import RequestError

# Left unanswered these would change what the client believes it gets, so they are refused instead of ignored.
UNSUPPORTED = {
    "functions": "send the functions as tools",
    "function_call": "use tool_choice",
    "audio": "this server answers in text only",
    "suffix": "put the text into prompt",
    "prompt_logprobs": "only the answer's logprobs are available",
    "use_beam_search": "use n with temperature",
}


def _strings(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _token_keys(value: object) -> object:
    """JSON objects have string keys only: turn token ids back into numbers."""
    if not isinstance(value, dict):
        return value
    try:
        return {int(token): bias for token, bias in value.items()}
    except ValueError:
        raise ValueError('keys must be token ids, such as "1234"') from None


def _prompts(value: object) -> object:
    """Each of the four shapes of a prompt as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in value):
            return value
    raise ValueError("give a string, a list of strings, a list of token ids or a list of such lists, none empty")


class StreamOptions(Wire):
    """What a stream should contain beside the answer."""

    include_usage: bool | None = None


class GenerationRequest(Constrained):
    """What both endpoints share. A field that is None was not sent."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[list[str], BeforeValidator(_strings)] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(_token_keys)] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    session: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    priority: int | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Any) -> Any:
        refuse(value, UNSUPPORTED)
        return value

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is only allowed with stream: true.", param="stream_options")
        return self

    @property
    def choices(self) -> int:
        """How many answers are wanted for each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for the engine's SamplingParams: what the client sent, types right, ranges unchecked.

        Without its grammar, which for a chat depends on the model as well.
        """
        sent = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in sent.items()}


SAMPLING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "min_tokens",
)


class ChatRequest(GenerationRequest, Caching):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs is only allowed with logprobs: true.", param="top_logprobs")
        if self.tool_choice:
            self.tool_choice.check([tool.function.name for tool in self.tools or ()])
        return self

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools, so that its answer is searched for calls."""
        return bool(self.tools) and not (self.tool_choice and self.tool_choice.mode == "none")

    def sampling(self) -> dict[str, Any]:
        """As the base says; the newer name of max_tokens wins, logprobs become the number of alternatives."""
        kwargs = super().sampling()
        if self.max_completion_tokens is not None:
            kwargs["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            kwargs["logprobs"] = self.top_logprobs or 0
        return kwargs

    def grammar_for(self, form: CallForm) -> Grammar | None:
        """What the answer must fit, None for free text. form: how the model writes calls of tools."""
        schemas = [tool.function.called() for tool in self.tools or ()]
        several = self.parallel_tool_calls is not False
        return grammar_of(self.answer_grammar(), schemas, self.tool_choice, form=form, several=several)

    def talk(self) -> Talk:
        """The conversation for a chat template."""
        return Talk(self.template_messages(), self.template_tools(), self.chat_template_kwargs or {})

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages for `apply_chat_template`."""
        return [message.for_template() for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]] | None:
        """The tools for `apply_chat_template`, or None where there are none.

        Also where `tool_choice` forbids their use: without them the prompt would begin otherwise, and a conversation
        that forbids them for one request would find nothing of itself in the cache.
        """
        return [tool.for_template() for tool in self.tools or ()] or None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. `prompt` is a list of prompts, each a string or a list of token ids."""

    prompt: Annotated[list[Any], BeforeValidator(_prompts)]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _refuse_echo(self) -> CompletionRequest:
        if self.echo:
            raise RequestError("echo is not supported: put the prompt before the answer yourself.", param="echo")
        if self.best_of not in (None, 1):
            raise RequestError("best_of is not supported: ask for n answers and choose one.", param="best_of")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids, in the order of the choices that answer them."""
        return self.prompt

    def sampling(self) -> dict[str, Any]:
        """As the base says, with logprobs."""
        kwargs = super().sampling()
        if self.logprobs is not None:
            kwargs["logprobs"] = self.logprobs
        return kwargs


def parse_chat(body: bytes | Mapping[str, Any]) -> ChatRequest:
    """Parse a chat completion request. Raises RequestError with the offending `param` and one readable sentence."""
    return read(ChatRequest, body)


def parse_completion(body: bytes | Mapping[str, Any]) -> CompletionRequest:
    """Parse a completion request. Raises RequestError with the offending `param` and one readable sentence."""
    return read(CompletionRequest, body)
