"""OpenAI's Responses: stateless, so that the view stays ours; encrypted reasoning is given back with the history."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import httpx2

from longturn.conversation.models.content import Load, Picture, pieces, words
from longturn.conversation.models.contract import Answer, Delta, Finish, ModelRequest, function_of
from longturn.conversation.models.failures import counted, failure, said_by
from longturn.conversation.models.openai_client import CACHE_SECONDS, TIMEOUT, as_provider_errors, client, window_of
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall
from longturn.conversation.window import Window
from longturn.dialects.responses_usage import use
from longturn.errors import ProviderError

DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
ENDS = ("response.completed", "response.incomplete", "response.failed")


class OpenAIResponses:
    """A model behind Responses. url: None is OpenAI itself."""

    def __init__(
        self, name: str, url: str | None = None, api_key: str | None = None, *, timeout: httpx2.Timeout = TIMEOUT
    ) -> None:
        self.name = name
        self.url = url
        self.provider = "openai"
        self.cache_seconds = CACHE_SECONDS
        self._sdk = client(url, api_key, timeout)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """As `Model.stream`."""
        final: dict[str, Any] | None = None
        with as_provider_errors(str(self._sdk.base_url)):
            events = await self._sdk.responses.create(**self._body(request))
            async with events:
                async for event in events:
                    if event.type == "error":
                        raise failure(event.message or "the stream ended with an error", kind=event.code)
                    if event.type in DELTAS:
                        yield Delta(event.delta, "text" if DELTAS[event.type] == "text" else "reasoning")
                    elif event.type in ENDS:
                        final = event.response.model_dump(mode="json", exclude_none=True)
        if final is None:
            raise ProviderError(f"{self.name}'s answer broke off before its end: try again", retryable=True)
        yield answer(final)

    async def window(self) -> Window | None:
        """As `Model.window`."""
        return await window_of(self._sdk, self.name, self.url)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sdk.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "input": [item for message in request.messages for item in items(message, request.load)],
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if request.tools:
            body["tools"] = [{"type": "function", "strict": False, **function_of(tool)} for tool in request.tools]
            if not request.use_tools:
                body["tool_choice"] = "none"
        if request.max_output is not None:
            body["max_output_tokens"] = request.max_output
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.session is not None:
            body["prompt_cache_key"] = request.session
        return body


def items(message: Mapping[str, Any], load: Load | None = None) -> Iterator[dict[str, Any]]:
    """A neutral message as input items: one for its words, one for each block of reasoning, call and result."""
    role = message["role"]
    if role == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    for block in message.get("reasoning", ()):
        if item := (block.get("data") or {}).get("responses"):
            yield item
    if said := [_piece(piece) for piece in pieces(message, load)] if role == "user" else words(message):
        yield {"role": "developer" if role == "system" else role, "content": said}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        yield {
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        }


def _piece(piece: str | Picture) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "input_text", "text": piece}
    return {"type": "input_image", "detail": "auto", "image_url": piece.url}


def answer(response: Mapping[str, Any]) -> Answer:
    """The answer in a response object that is at its end. Raises ProviderError if that failed."""
    if response.get("status") == "failed":
        message, kind = said_by(response.get("error"), "the response failed: try again")
        raise failure(message, kind=kind)
    parts: list[Part] = []
    for item in response.get("output", ()):
        if item["type"] == "reasoning":
            told = [*item.get("summary", ()), *item.get("content", ())]
            block = {name: value for name, value in item.items() if name != "status"}
            parts.append(Reasoning("\n\n".join(piece["text"] for piece in told), {"responses": block}))
        elif item["type"] == "message":
            said = "".join(piece.get("text") or piece.get("refusal") or "" for piece in item["content"])
            parts.append(Text(said))
        elif item["type"] == "function_call":
            parts.append(ToolCall(item["call_id"], item["name"], item.get("arguments") or "{}"))
    usage = response.get("usage")
    return Answer(tuple(parts), _finish(response, parts), counted(use, usage), usage, response.get("id"))


def _finish(response: Mapping[str, Any], parts: list[Part]) -> Finish:
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return "refused" if reason == "content_filter" else "length"
    return "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
