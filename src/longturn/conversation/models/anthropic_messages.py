"""Anthropic's Messages, with the cache asked for: one mark behind the system prompt, one that moves with the end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2
from anthropic import AsyncAnthropic

from longturn.conversation.models.content import Load, pieces
from longturn.conversation.models.contract import Answer, Delta, Finish, ModelRequest, function_of
from longturn.conversation.models.failures import counted, failure, said_by, unreachable
from longturn.conversation.models.limits import MOST_OUTPUT, known_window, limited
from longturn.conversation.models.openai_client import TIMEOUT, is_local
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall
from longturn.conversation.window import Window
from longturn.dialects.anthropic_usage import joined, use
from longturn.errors import ProviderError

CACHED = {"type": "ephemeral"}
CACHE_SECONDS = 300.0
FINISHES: Mapping[str, Finish] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refused",
}


class AnthropicMessages:
    """A model behind Messages. url: None is Anthropic itself, with its key in the environment.

    `use_tools=False` is left to the prompt: another `tool_choice` would throw away the cache of all messages.
    """

    def __init__(
        self, name: str, url: str | None = None, api_key: str | None = None, *, timeout: httpx2.Timeout = TIMEOUT
    ) -> None:
        self.name = name
        self.url = url
        self.provider = "anthropic"
        self.cache_seconds = CACHE_SECONDS
        # The API demands a limit of every request, and refuses one over the model's own, which `window` finds out.
        self._most_output = MOST_OUTPUT
        http = anthropic.DefaultAsyncHttpxClient(trust_env=url is None or not is_local(url), timeout=timeout)
        self._sdk = AsyncAnthropic(api_key=api_key, base_url=url, timeout=timeout, max_retries=0, http_client=http)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """As `Model.stream`."""
        reading = _Reading()
        with self._errors():
            events = await self._sdk.messages.create(**self._body(request))
            async with events:
                async for event in events:
                    if delta := reading.take(event.model_dump(mode="json")):
                        yield delta
        yield reading.answer(self.name)

    async def window(self) -> Window | None:
        """As `Model.window`."""
        with self._errors():
            listed = (await self._sdk.models.retrieve(self.name)).model_dump()
        context = listed.get("max_input_tokens")
        found = limited(context, listed.get("max_tokens")) if context else known_window(self.name, self.provider)
        if found is not None:
            self._most_output = found.output
        return found

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sdk.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        system, messages = conversation(request.messages, request.load)
        body: dict[str, Any] = {
            "model": self.name,
            "messages": messages,
            "max_tokens": request.max_output or self._most_output,
            "cache_control": CACHED,
            "stream": True,
        }
        if system:
            body["system"] = [*system[:-1], {**system[-1], "cache_control": CACHED}]
        if request.tools:
            body["tools"] = [
                {
                    "name": function["name"],
                    "description": function.get("description", ""),
                    "input_schema": function["parameters"],
                }
                for function in map(function_of, request.tools)
            ]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return body

    @contextmanager
    def _errors(self) -> Iterator[None]:
        url = str(self._sdk.base_url)
        try:
            yield
        except anthropic.APIStatusError as error:
            message, kind = said_by(error.body, f"{url} answers {error.status_code}: check the URL and the key")
            raise failure(message, status=error.status_code, kind=kind, headers=error.response.headers) from error
        except anthropic.APIConnectionError as error:
            raise unreachable(url, error.__cause__ if isinstance(error.__cause__, Exception) else error) from error
        except httpx2.HTTPError as error:
            raise unreachable(url, error) from error
        except (anthropic.AnthropicError, TypeError) as error:
            # The SDK looks for a key only when it sends, and finds a TypeError where there is none.
            raise ProviderError(f"Anthropic cannot be asked ({error}): set ANTHROPIC_API_KEY") from error
        except ValueError as error:
            raise ProviderError(f"{url} sent what cannot be read ({error}): check the URL") from error


def conversation(
    messages: Sequence[Mapping[str, Any]], load: Load | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """System blocks and messages of neutral ones: results are the user's, and neighbours of one role are one message.

    A system message behind the first words cannot stay one on every model, and becomes the user's.
    """
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system" and not turns:
            system += blocks(message)
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        content = list(blocks(message, load))
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += content
        elif content:
            turns.append({"role": role, "content": content})
    return system, turns


def blocks(message: Mapping[str, Any], load: Load | None = None) -> Iterator[dict[str, Any]]:
    """The content blocks of one neutral message."""
    if message["role"] == "tool":
        text = message["content"]
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        yield {**result, "content": text} if text else result
        return
    for block in message.get("reasoning", ()):
        if own := (block.get("data") or {}).get("anthropic"):
            yield own
    for piece in pieces(message, load):
        if isinstance(piece, str):
            if piece.strip():  # a block of nothing but space is refused
                yield {"type": "text", "text": piece}
        else:
            source = {"type": "base64", "media_type": piece.media_type, "data": piece.data}
            yield {"type": "image", "source": source}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = arguments(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


def arguments(text: str) -> dict[str, Any]:
    """A call's arguments as the object that Anthropic and Gemini want; what is none is put into one as it is."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"unreadable": text}


class _Reading:
    """One stream as it is read."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None

    def take(self, event: Mapping[str, Any]) -> Delta | None:
        match event["type"]:
            case "message_start":
                self._id = event["message"]["id"]
                self._usage = dict(event["message"].get("usage") or {})
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                return self._piece(event["index"], event["delta"])
            case "message_delta":
                self._reason = event["delta"].get("stop_reason") or self._reason
                self._usage = joined(self._usage, event.get("usage") or {})
        return None

    def _piece(self, index: int, delta: Mapping[str, Any]) -> Delta | None:
        block = self._blocks[index]
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
                return Delta(delta["text"])
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
                return Delta(delta["thinking"], "reasoning")
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        return None

    def answer(self, name: str) -> Answer:
        """The whole. Raises ProviderError for a stream that broke off."""
        if self._reason is None:
            raise ProviderError(f"{name}'s answer broke off before its end: try again", retryable=True)
        parts: list[Part] = []
        for index in sorted(self._blocks):
            block = {key: value for key, value in self._blocks[index].items() if value is not None}
            if block["type"] == "text":
                parts.append(Text(block["text"]))
            elif block["type"] in ("thinking", "redacted_thinking"):
                parts.append(Reasoning(block.get("thinking", ""), {"anthropic": block}))
            elif block["type"] == "tool_use":
                given = self._inputs.get(index) or json.dumps(block.get("input") or {})
                parts.append(ToolCall(block["id"], block["name"], given))
        return Answer(
            tuple(parts), FINISHES.get(self._reason, "stop"), counted(use, self._usage), self._usage, self._id
        )
