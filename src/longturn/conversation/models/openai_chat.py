"""OpenAI's Chat Completions, and every server that speaks them, ours included."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx2

from longturn.conversation.models.content import Load, pieces
from longturn.conversation.models.contract import Answer, Delta, Finish, ModelRequest, function_of
from longturn.conversation.models.failures import counted
from longturn.conversation.models.openai_client import (
    CACHE_SECONDS,
    TIMEOUT,
    as_provider_errors,
    client,
    served,
    window_of,
)
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall
from longturn.conversation.window import Window
from longturn.dialects import sessions
from longturn.dialects.openai_usage import use
from longturn.errors import ProviderError

FINISHES: Mapping[str, Finish] = {"length": "length", "content_filter": "refused"}
# Under these names servers give reasoning that they want back: DeepSeek and older vLLM, newer vLLM and OpenRouter.
REASONING = ("reasoning_content", "reasoning")


class OpenAIChat:
    """A model behind Chat Completions. url: None is OpenAI itself; settings: more fields of the request's body."""

    def __init__(
        self,
        name: str,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: httpx2.Timeout = TIMEOUT,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.provider = "openai" if url is None else None
        self.cache_seconds = CACHE_SECONDS if url is None else math.inf
        self._sdk = client(url, api_key, timeout)
        self._settings = dict(settings or {})

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """As `Model.stream`."""
        with as_provider_errors(str(self._sdk.base_url)):
            chunks = await self._sdk.chat.completions.create(**self._body(request))
            async with chunks:
                reading = _Reading()
                async with aclosing(_dumped(chunks)) as events:
                    async for chunk in events:
                        for delta in reading.take(chunk):
                            yield delta
        yield reading.answer(self.name)

    async def window(self) -> Window | None:
        """As `Model.window`."""
        return await window_of(self._sdk, self.name, self.url)

    async def names(self) -> list[str]:
        """The models that the server lists. Raises ProviderError."""
        return list(await served(self._sdk))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sdk.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        ours = self.url is not None
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [wire(message, request.load) for message in request.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": self._settings,
        }
        if request.tools:
            body["tools"] = [{"type": "function", "function": dict(function_of(tool))} for tool in request.tools]
            if not request.use_tools:
                body["tool_choice"] = "none"
        if request.max_output is not None:
            # OpenAI's own newer models refuse the old name, other servers do not know the new one.
            body["max_tokens" if ours else "max_completion_tokens"] = request.max_output
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.session is not None:
            if ours:
                body["extra_headers"] = {sessions.OURS: request.session}
            else:
                body["prompt_cache_key"] = request.session
        return body


def wire(message: Mapping[str, Any], load: Load | None = None) -> dict[str, Any]:
    """A neutral message on the wire: the same but for files and reasoning, which goes back under the name it had."""
    out = {name: value for name, value in message.items() if name != "reasoning"}
    if not isinstance(message["content"], str):
        out["content"] = [
            {"type": "text", "text": piece}
            if isinstance(piece, str)
            else {"type": "image_url", "image_url": {"url": piece.url}}
            for piece in pieces(message, load)
        ]
    for block in message.get("reasoning", ()):
        field = (block.get("data") or {}).get("chat")
        if field in REASONING:
            out[field] = out.get(field, "") + block["text"]
    return out


async def _dumped(chunks: Any) -> AsyncGenerator[dict[str, Any]]:
    async for chunk in chunks:
        yield chunk.model_dump()


@dataclass
class _Call:
    id: str
    name: str
    arguments: str


class _Reading:
    """One stream as it is read."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._thought_field: str | None = None
        self._calls: list[_Call] = []
        self._slots: dict[int, _Call] = {}
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._id: str | None = None

    def take(self, chunk: Mapping[str, Any]) -> list[Delta]:
        self._id = chunk.get("id") or self._id
        self._usage = chunk.get("usage") or self._usage
        found = []
        for choice in chunk.get("choices") or ():
            self._reason = choice.get("finish_reason") or self._reason
            delta = choice.get("delta") or {}
            field = next((name for name in REASONING if isinstance(delta.get(name), str) and delta[name]), None)
            if field is not None:
                self._thought_field = field
                self._thought.append(delta[field])
                found.append(Delta(delta[field], "reasoning"))
            if text := delta.get("content") or delta.get("refusal"):
                self._text.append(text)
                found.append(Delta(text))
            for piece in delta.get("tool_calls") or ():
                self._call(piece)
        return found

    def _call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        index = piece.get("index") or 0
        slot = self._slots.get(index)
        # Some servers number all calls 0 and only tell them apart by their ids.
        if slot is None or (piece.get("id") and piece["id"] != slot.id and function.get("name")):
            slot = _Call(piece.get("id") or f"call_{secrets.token_hex(12)}", "", "")
            self._slots[index] = slot
            self._calls.append(slot)
        slot.name += function.get("name") or ""
        slot.arguments += function.get("arguments") or ""

    def answer(self, name: str) -> Answer:
        """The whole. Raises ProviderError for a stream that broke off."""
        if self._reason is None:
            raise ProviderError(f"{name}'s answer broke off before its end: try again", retryable=True)
        parts: list[Part] = []
        if self._thought:
            parts.append(Reasoning("".join(self._thought), {"chat": self._thought_field}))
        if self._text:
            parts.append(Text("".join(self._text)))
        parts += [ToolCall(call.id, call.name, call.arguments or "{}") for call in self._calls]
        finish: Finish = FINISHES.get(self._reason, "tool_calls" if self._calls else "stop")
        return Answer(tuple(parts), finish, counted(use, self._usage), self._usage, self._id)
