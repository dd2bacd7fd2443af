"""Requests of Gemini's generateContent, countTokens and cachedContents.

Types are checked here; ranges by the engine's sampling parameters, which are the same for every dialect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic.alias_generators import to_camel

from longturn.dialects import grammar
from longturn.dialects.gemini_content import Content, Contents, Google, Part, messages
from longturn.dialects.gemini_schema import json_schema
from longturn.dialects.gemini_tools import FunctionDeclaration, Tool, ToolConfig
from longturn.dialects.grammar import CallForm, Grammar
from longturn.dialects.reading import read
from longturn.dialects.talk import Talk
from longturn.errors import RequestError

Json = dict[str, Any]
# Left unanswered these would change what the client believes it gets.
UNSUPPORTED = {
    "speech_config": "this server answers in text only",
    "response_format": "use responseMimeType and responseSchema",
    "translation_config": "ask for the translation in the prompt",
}
DEFAULT_LIFE = timedelta(hours=1)
_DURATION = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?s", re.ASCII)


def _number(value: object) -> object:
    """JSON of protocol buffers has whole numbers as 5, 5.0 and "5"."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,19}", value, re.ASCII) else value


Int = Annotated[int, BeforeValidator(_number)]


class GenerationConfig(Google):
    """How to answer. What is None was not sent. thinkingConfig is taken and has no effect."""

    max_output_tokens: Annotated[Int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    seed: Int | None = None
    stop_sequences: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    candidate_count: Annotated[Int, Field(ge=1, le=8)] | None = None
    response_logprobs: bool | None = None
    logprobs: Int | None = None
    response_mime_type: Literal["", "text/plain", "application/json", "text/x.enum"] | None = None
    response_schema: Json | None = None
    response_json_schema: Json | bool | None = None
    response_modalities: list[str] | None = None
    thinking_config: Json | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, value: Any) -> Any:
        for name, advice in UNSUPPORTED.items():
            if isinstance(value, Mapping) and (value.get(name) or value.get(to_camel(name))):
                raise ValueError(f"{to_camel(name)} is not supported: {advice}")
        return value

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> GenerationConfig:
        if any(name.upper() != "TEXT" for name in self.response_modalities or ()):
            raise ValueError("responseModalities can only be TEXT: this server answers in text only")
        if self.logprobs is not None and not self.response_logprobs:
            raise ValueError("logprobs is only allowed with responseLogprobs: true")
        if self.response_schema is not None and self.response_json_schema is not None:
            raise ValueError("responseSchema and responseJsonSchema exclude each other: send one of them")
        schema = self.response_schema is not None or self.response_json_schema is not None
        if schema and self.response_mime_type not in ("application/json", "text/x.enum"):
            raise ValueError("a response schema needs responseMimeType: application/json or text/x.enum")
        if self.response_mime_type == "text/x.enum" and not (self.response_schema or {}).get("enum"):
            raise ValueError("responseMimeType text/x.enum needs a responseSchema with an enum")
        return self

    def sampling(self) -> Json:
        """Keyword arguments for the engine's SamplingParams, without the grammar."""
        settings = {
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": None if self.stop_sequences is None else tuple(self.stop_sequences),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logprobs": (self.logprobs or 0) if self.response_logprobs else None,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def answer_grammar(self) -> Grammar | None:
        """What the answer must fit, None for free text."""
        at = "generationConfig.responseSchema"
        if self.response_mime_type == "text/x.enum":
            options = (self.response_schema or {})["enum"]
            if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
                raise RequestError(f"{at}.enum must be a list of texts.", param=at)
            return grammar.choice(options, f"{at}.enum")
        if self.response_mime_type != "application/json":
            return None
        if self.response_schema is not None:
            return grammar.json_schema(json_schema(self.response_schema, closed=True), at)
        if self.response_json_schema is not None:
            return grammar.json_schema(self.response_json_schema, "generationConfig.responseJsonSchema")
        return grammar.json_schema({"type": ["object", "array"]}, "generationConfig.responseMimeType")


class Prompted(Google):
    """What can be put into a cache: the beginning of a prompt."""

    contents: Contents = Field(default_factory=list)
    system_instruction: Content | None = None
    tools: list[Tool] | None = None
    tool_config: ToolConfig | None = None

    @property
    def functions(self) -> list[FunctionDeclaration]:
        """All functions that are declared."""
        return [function for tool in self.tools or () for function in tool.function_declarations]

    @model_validator(mode="after")
    def _tools_fit(self) -> Self:
        self.calling()
        return self

    def calling(self) -> tuple[str, list[FunctionDeclaration]]:
        """The mode of calling, and the functions that may be called. Raises RequestError where these do not fit."""
        config = self.tool_config.function_calling_config if self.tool_config else None
        mode = config.mode if config and config.mode and config.mode != "MODE_UNSPECIFIED" else "AUTO"
        functions, allowed = self.functions, config.allowed_function_names if config else None
        at = "toolConfig.functionCallingConfig"
        if mode in ("ANY", "VALIDATED") and not functions:
            raise RequestError(f"{at}.mode {mode} needs functions: declare at least one.", param=at)
        if allowed:
            if mode not in ("ANY", "VALIDATED"):
                message = f"{at}.allowedFunctionNames is only allowed with mode ANY or VALIDATED."
                raise RequestError(message, param=at)
            if unknown := sorted(set(allowed) - {function.name for function in functions}):
                message = f"{at}.allowedFunctionNames has {unknown[0]!r}, which is not among the declared functions."
                raise RequestError(message, param=at)
            functions = [function for function in functions if function.name in allowed]
        return mode, functions

    def followed_by(self, text: str) -> Self:
        """The same with a text of the user's after it."""
        return self.model_copy(update={"contents": [*self.contents, Content(role="user", parts=[Part(text=text)])]})

    def talk(self) -> Talk:
        """The conversation for a chat template; tools are shown also where their use is forbidden, as the beginning of
        the prompt would be another without them."""
        tools = [function.for_template() for function in self.functions]
        return Talk(messages(self.system_instruction, self.contents), tools or None)


class GenerateRequest(Prompted):
    """POST .../models/M:generateContent. safetySettings and labels are ignored."""

    generation_config: GenerationConfig = Field(default_factory=GenerationConfig)
    cached_content: str | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> GenerateRequest:
        if not self.contents:
            raise RequestError("contents is missing: send at least one text to answer.", param="contents")
        if self.cached_content and (self.system_instruction or self.tools or self.tool_config):
            raise RequestError(
                "CachedContent can not be used with GenerateContent request setting system_instruction, tools or "
                "tool_config: put them into the CachedContent instead.",
                param="cachedContent",
            )
        return self

    def after(self, cached: Prompted) -> GenerateRequest:
        """This request with what is cached before it."""
        return self.model_copy(
            update={
                "contents": [*cached.contents, *self.contents],
                "system_instruction": cached.system_instruction,
                "tools": cached.tools,
                "tool_config": cached.tool_config,
            }
        )

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call functions, so that its answer is searched for calls."""
        return bool(self.functions) and self.calling()[0] != "NONE"

    def grammar_for(self, form: CallForm) -> Grammar | None:
        """What the answer must fit, None for free text. form: how the model writes calls."""
        answer = self.generation_config.answer_grammar()
        if not self.uses_tools:
            return answer
        mode, functions = self.calling()
        schemas = [function.called(strict=mode == "VALIDATED") for function in functions]
        if mode == "ANY":
            return grammar.tool_calls(schemas, "tools", form=form)
        if answer is not None:
            return grammar.answer_or_tool_calls(answer, schemas, "tools", form=form)
        if mode == "VALIDATED" and form == "tagged":
            return grammar.text_with_tool_calls(schemas, "tools")
        return None


class CountRequest(Google):
    """POST .../models/M:countTokens: contents, or a whole request. Vertex takes all of it side by side."""

    generate_content_request: GenerateRequest

    @model_validator(mode="before")
    @classmethod
    def _whole_request(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        given = value.get("generateContentRequest") or value.get("generate_content_request")
        return {"generateContentRequest": value if given is None else given}


class CacheLife(Google):
    """How long a cached content is kept: for a time, or until one."""

    ttl: str | None = None
    expire_time: str | None = None

    def until(self, now: datetime) -> datetime | None:
        """When it expires, None if that is not said. Raises RequestError for what is no time in the future."""
        if self.ttl is not None and self.expire_time is not None:
            raise RequestError("ttl and expireTime exclude each other: send one of them.", param="ttl")
        if self.ttl is not None:
            if not _DURATION.fullmatch(self.ttl):
                raise RequestError('ttl must be seconds with an s at their end, such as "300s".', param="ttl")
            return _later(now, float(self.ttl[:-1]), "ttl")
        if self.expire_time is None:
            return None
        try:
            end = datetime.fromisoformat(self.expire_time)
            end = end.replace(tzinfo=UTC) if end.tzinfo is None else end.astimezone(UTC)
        except (ValueError, OverflowError):
            message = 'expireTime must be a time such as "2027-01-31T12:00:00Z".'
            raise RequestError(message, param="expireTime") from None
        return _later(now, (end - now).total_seconds(), "expireTime")


def _later(now: datetime, seconds: float, param: str) -> datetime:
    if seconds <= 0:
        raise RequestError(f"{param} must lie in the future.", param=param)
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        raise RequestError(f"{param} lies too far in the future: choose a shorter time.", param=param) from None


class CachedContentRequest(Prompted, CacheLife):
    """POST .../cachedContents."""

    model: str = Field(min_length=1)
    display_name: Annotated[str, Field(max_length=128)] | None = None

    @model_validator(mode="after")
    def _has_something(self) -> CachedContentRequest:
        if not (self.contents or self.system_instruction or self.functions):
            message = "contents is missing: there is nothing to cache in this request."
            raise RequestError(message, param="contents")
        return self


def parse_generate(body: bytes | Mapping[str, Any]) -> GenerateRequest:
    """Parse a generateContent request. Raises RequestError with one readable sentence, as all of these do."""
    return read(GenerateRequest, body)


def parse_count(body: bytes | Mapping[str, Any]) -> GenerateRequest:
    """Parse a countTokens request: the request whose prompt is to be counted."""
    return read(CountRequest, body).generate_content_request


def parse_cached_content(body: bytes | Mapping[str, Any]) -> CachedContentRequest:
    """Parse the creation of a cached content."""
    return read(CachedContentRequest, body)


def parse_cache_life(body: bytes | Mapping[str, Any]) -> CacheLife:
    """Parse an update of a cached content; only its life can change."""
    return read(CacheLife, body)
