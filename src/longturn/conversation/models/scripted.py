"""A model for tests and benchmarks that behaves like a provider: a window, a prefix cache, and no patience."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from longturn.conversation.models.contract import Answer, Delta, Finish, ModelRequest
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall
from longturn.conversation.window import Window
from longturn.errors import ContextOverflow, ProviderError
from longturn.ledger import TokenUse

Script = Callable[[ModelRequest, int], Sequence[Part]]
"""What is answered: of the request and its number, from 0, among those that were answered."""


class ScriptedModel:
    """Answers by `script`. bytes_per_token: how it counts, which its user does not know; overhead: tokens a message.

    It refuses what providers refuse: a request over the window, a result without its call, a call without its result,
    two of one call, a conversation that does not begin with the user. Its cache knows every prefix that it was sent.
    """

    provider = None
    url = None
    cache_seconds = math.inf

    def __init__(
        self,
        script: Script,
        window: Window,
        *,
        name: str = "scripted",
        bytes_per_token: float = 4.0,
        overhead: int = 4,
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._script = script
        self._window = window
        self._bytes_per_token = bytes_per_token
        self._overhead = overhead
        self._seen: set[bytes] = set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """As `Model.stream`: word by word."""
        _check(request.messages)
        segments = [self._segment(tool) for tool in request.tools]
        segments += [self._segment(message) for message in request.messages]
        logical = sum(tokens for _, tokens in segments)
        room = self._window.input or self._window.context - (request.max_output or 1)
        if logical > room:
            raise ContextOverflow(
                f"This model's maximum context length is {self._window.context} tokens. However, your messages have "
                f"{logical} tokens, and {request.max_output} are reserved for the answer.",
                status=400,
            )
        cached = self._admit(segments)
        parts = tuple(self._script(request, len(self.requests)))
        self.requests.append(request)
        for part in parts:
            if isinstance(part, Text | Reasoning):
                for word in part.text.split(" "):
                    yield Delta(word + " ", "text" if isinstance(part, Text) else "reasoning")
        called = any(isinstance(part, ToolCall) for part in parts)
        finish: Finish = "tool_calls" if called else "stop"
        output = sum(self._tokens(msgspec.json.encode(part)) for part in parts)
        use = TokenUse(logical=logical, cached={"provider": cached}, computed=logical - cached, output=output)
        yield Answer(parts, finish, use, use.to_dict(), f"scripted-{len(self.requests)}")

    async def window(self) -> Window | None:
        """The window that it was given."""
        return self._window

    async def close(self) -> None:
        """There is nothing to close."""

    def _segment(self, value: Any) -> tuple[bytes, int]:
        text = msgspec.json.encode(value)
        return text, self._tokens(text) + self._overhead

    def _tokens(self, text: bytes) -> int:
        return math.ceil(len(text) / self._bytes_per_token)

    def _admit(self, segments: Sequence[tuple[bytes, int]]) -> int:
        """How many tokens of the longest known prefix; all its prefixes are known afterwards."""
        chain = hashlib.blake2b(digest_size=16)
        cached = total = 0
        hit = True
        for text, tokens in segments:
            chain.update(len(text).to_bytes(8, "little") + text)
            total += tokens
            hit = hit and chain.digest() in self._seen
            if hit:
                cached = total
            self._seen.add(chain.digest())
        return cached


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    spoken = [message for message in messages if message["role"] != "system"]
    if not spoken or spoken[0]["role"] != "user":
        raise ProviderError("the first message must be the user's", status=400)
    waiting: set[str] = set()
    known: set[str] = set()
    for at, message in enumerate(spoken):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if call not in waiting:
                raise ProviderError(f"message {at}: result of {call!r}, which no call before it waits for", status=400)
            waiting.remove(call)
            continue
        if waiting:
            raise ProviderError(f"message {at}: calls {sorted(waiting)} have no results", status=400)
        calls = [call["id"] for call in message.get("tool_calls", ())]
        if len(set(calls)) < len(calls) or known & set(calls):
            raise ProviderError(f"message {at}: a call's id was used before", status=400)
        waiting |= set(calls)
        known |= waiting
    if waiting:
        raise ProviderError(f"calls {sorted(waiting)} have no results", status=400)
