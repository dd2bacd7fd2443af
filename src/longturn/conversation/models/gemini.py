"""Google's Gemini, whose implicit cache needs nothing but a prefix that stays."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
from google import genai
from google.genai import errors, types

from longturn.conversation.models.anthropic_messages import arguments
from longturn.conversation.models.content import Load, pieces, words
from longturn.conversation.models.contract import Answer, Delta, Finish, ModelRequest, function_of
from longturn.conversation.models.failures import counted, failure, said_by, unreachable
from longturn.conversation.models.limits import known_window, limited
from longturn.conversation.models.openai_client import is_local
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall
from longturn.conversation.window import Window
from longturn.dialects.gemini_usage import use
from longturn.errors import ProviderError

TIMEOUT = 600.0
CACHE_SECONDS = 24 * 3600.0
UNFINISHED = "FINISH_REASON_UNSPECIFIED"

# The SDK's streams do not close what they read from, and an answer that nobody wants would be paid for to its end. So
# each request notes the responses that it opens.
_opened: ContextVar[list[httpx2.Response]] = ContextVar("opened")


async def _remember(response: httpx2.Response) -> None:
    if (opened := _opened.get(None)) is not None:
        opened.append(response)


class Gemini:
    """A model behind generateContent. url: None is Google itself. timeout: seconds."""

    def __init__(
        self, name: str, url: str | None = None, api_key: str | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        self.name = name
        self.url = url
        self.provider = "google"
        self.cache_seconds = CACHE_SECONDS
        self._http = httpx2.AsyncClient(
            trust_env=url is None or not is_local(url), follow_redirects=True, event_hooks={"response": [_remember]}
        )
        options = types.HttpOptions(base_url=url, timeout=int(timeout * 1000), httpx_async_client=self._http)
        try:
            self._sdk = genai.Client(api_key=api_key, http_options=options)
        except ValueError as error:
            raise ProviderError(f"Gemini needs a key: set GEMINI_API_KEY ({error})") from error

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """As `Model.stream`."""
        reading = _Reading()
        opened: list[httpx2.Response] = []
        _opened.set(opened)
        try:
            with self._errors():
                chunks = await self._sdk.aio.models.generate_content_stream(
                    model=self.name, contents=contents(request.messages, request.load), config=self._config(request)
                )
                async for chunk in chunks:
                    for delta in reading.take(chunk):
                        yield delta
        finally:
            for response in opened:
                await response.aclose()
        yield reading.answer(self.name)

    async def window(self) -> Window | None:
        """As `Model.window`."""
        with self._errors():
            found = await self._sdk.aio.models.get(model=self.name)
        if not found.input_token_limit:
            return known_window(self.name, self.provider)
        output = found.output_token_limit or 0
        return limited(found.input_token_limit + output, output or None, prompt=found.input_token_limit)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sdk.aio.aclose()
        await self._http.aclose()

    def _config(self, request: ModelRequest) -> types.GenerateContentConfig:
        config = types.GenerateContentConfig(
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            max_output_tokens=request.max_output,
            temperature=request.temperature,
        )
        if system := [words(message) for message in request.messages if message["role"] == "system"]:
            config.system_instruction = types.Content(parts=[types.Part(text=text) for text in system])
        if request.tools:
            functions = [
                types.FunctionDeclaration(
                    name=function["name"],
                    description=function.get("description"),
                    parameters_json_schema=function["parameters"],
                )
                for function in map(function_of, request.tools)
            ]
            config.tools = [types.Tool(function_declarations=functions)]
            if not request.use_tools:
                calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.NONE)
                config.tool_config = types.ToolConfig(function_calling_config=calling)
        return config

    @contextmanager
    def _errors(self) -> Iterator[None]:
        url = self.url or "Gemini"
        try:
            yield
        except errors.APIError as error:
            headers = getattr(error.response, "headers", None)
            said, _ = said_by(error.message, f"{url} answers {error.code}: check the URL, the key and the model's name")
            raise failure(said, status=error.code, kind=error.status, headers=headers) from error
        except httpx2.HTTPError as error:
            raise unreachable(url, error) from error
        except ValueError as error:
            raise ProviderError(f"{url} sent what cannot be read ({error}): check the URL") from error


def contents(messages: Sequence[Mapping[str, Any]], load: Load | None = None) -> list[types.Content]:
    """Neutral messages as contents, without the system's; results are the user's, neighbours of one role are one."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    found: list[types.Content] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "model" if message["role"] == "assistant" else "user"
        if not found or found[-1].role != role:
            found.append(types.Content(role=role, parts=[]))
        parts = found[-1].parts
        assert parts is not None
        parts += _parts(message, names, load)
    return found


def _parts(message: Mapping[str, Any], names: Mapping[str, str], load: Load | None) -> Iterator[types.Part]:
    if message["role"] == "tool":
        call = message["tool_call_id"]
        response = types.FunctionResponse(name=names.get(call, "unknown"), response={"result": message["content"]})
        yield types.Part(function_response=response)
        return
    signatures: dict[str, str] = {}
    for block in message.get("reasoning", ()):
        signatures |= (block.get("data") or {}).get("gemini") or {}
    for piece in pieces(message, load):
        if isinstance(piece, str):
            yield types.Part(text=piece, thought_signature=_bytes(signatures.get("text")))
        else:
            picture = types.Blob(mime_type=piece.media_type, data=base64.b64decode(piece.data))
            yield types.Part(inline_data=picture)
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = types.FunctionCall(name=function["name"], args=arguments(function["arguments"]))
        yield types.Part(function_call=given, thought_signature=_bytes(signatures.get(call["id"])))


def _bytes(signature: str | None) -> bytes | None:
    return base64.b64decode(signature) if signature else None


class _Reading:
    """One stream as it is read."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: list[ToolCall] = []
        self._signatures: dict[str, str] = {}
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._id: str | None = None

    def take(self, chunk: types.GenerateContentResponse) -> list[Delta]:
        self._id = chunk.response_id or self._id
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
            self._reason = "SAFETY"
        found: list[Delta] = []
        for candidate in (chunk.candidates or ())[:1]:
            if candidate.finish_reason is not None and candidate.finish_reason.value != UNFINISHED:
                self._reason = candidate.finish_reason.value
            for part in (candidate.content.parts if candidate.content else None) or ():
                found += self._part(part)
        return found

    def _part(self, part: types.Part) -> Iterator[Delta]:
        owner = "text"
        if part.function_call is not None:
            call = part.function_call
            owner = call.id or f"call_{secrets.token_hex(12)}"
            self._calls.append(ToolCall(owner, call.name or "", json.dumps(call.args or {}, ensure_ascii=False)))
        if part.thought_signature:
            self._signatures[owner] = base64.b64encode(part.thought_signature).decode()
        if part.text:
            (self._thought if part.thought else self._text).append(part.text)
            yield Delta(part.text, "reasoning" if part.thought else "text")

    def answer(self, name: str) -> Answer:
        """The whole. Raises ProviderError for a stream that broke off."""
        if self._reason is None:
            raise ProviderError(f"{name}'s answer broke off before its end: try again", retryable=True)
        parts: list[Part] = []
        if self._thought or self._signatures:
            parts.append(Reasoning("".join(self._thought), {"gemini": self._signatures}))
        if self._text:
            parts.append(Text("".join(self._text)))
        parts += self._calls
        return Answer(tuple(parts), self._finish(), counted(use, self._usage), self._usage, self._id)

    def _finish(self) -> Finish:
        if self._reason == "MAX_TOKENS":
            return "length"
        if self._reason != "STOP":
            return "refused"
        return "tool_calls" if self._calls else "stop"
