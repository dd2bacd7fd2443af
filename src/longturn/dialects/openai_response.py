"""Answers of OpenAI Chat Completions and Completions as JSON objects: whole, as chunks of a stream, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longturn.dialects.tool_calls import ToolCall
from longturn.errors import LongturnError, RequestError

Json = dict[str, Any]


def chat_choice(
    index: int,
    content: str,
    finish_reason: str,
    *,
    tool_calls: Sequence[ToolCall] = (),
    logprobs: Json | None = None,
) -> Json:
    """One answer of a chat completion. Content is null where there are only tool calls, as clients expect."""
    message: Json = {"role": "assistant", "content": content or (None if tool_calls else ""), "refusal": None}
    if tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in tool_calls]
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}


def chat_completion(id: str, model: str, created: int, choices: Sequence[Json], usage: Json) -> Json:
    """A whole chat answer; `created` is in Unix seconds, `choices` come from `chat_choice`."""
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": list(choices),
        "usage": usage,
    }


def completion_choice(index: int, text: str, finish_reason: str, *, logprobs: Json | None = None) -> Json:
    """One answer of a completion."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def completion(id: str, model: str, created: int, choices: Sequence[Json], usage: Json) -> Json:
    """A whole completion; `created` is in Unix seconds, `choices` come from `completion_choice`."""
    return {
        "id": id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": list(choices),
        "usage": usage,
    }


@dataclass(frozen=True)
class _Stream:
    """What all chunks of one stream have in common; `created` is in Unix seconds."""

    id: str
    model: str
    created: int
    include_usage: bool = False

    _object = ""

    def usage(self, usage: Json) -> Json:
        """The last chunk, sent only when the client asked for usage."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> Json:
        chunk: Json = {
            "id": self.id,
            "object": self._object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if self.include_usage:
            chunk["usage"] = usage
        return chunk


@dataclass(frozen=True)
class ChatStream(_Stream):
    """Chunks of a streamed chat completion. For each choice `role`, then deltas, then `finish`; `usage` ends it all."""

    _object = "chat.completion.chunk"

    def role(self, index: int) -> Json:
        """The first chunk of a choice."""
        return self._delta(index, {"role": "assistant", "content": ""})

    def content(self, index: int, text: str, logprobs: Json | None = None) -> Json:
        """More text."""
        return self._delta(index, {"content": text}, logprobs)

    def tool_call(self, index: int, position: int, call: ToolCall) -> Json:
        """A whole tool call, the `position`-th (from 0) of its choice."""
        return self._delta(index, {"tool_calls": [{"index": position, **_tool_call(call)}]})

    def finish(self, index: int, finish_reason: str) -> Json:
        """The last chunk of a choice."""
        return self._delta(index, {}, finish_reason=finish_reason)

    def _delta(self, index: int, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
        return self._chunk([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}])


@dataclass(frozen=True)
class CompletionStream(_Stream):
    """Chunks of a streamed completion. For each choice `text` again and again, then `finish`; `usage` ends all."""

    _object = "text_completion"

    def text(self, index: int, text: str, logprobs: Json | None = None) -> Json:
        """More text."""
        return self._choice(index, text, logprobs)

    def finish(self, index: int, finish_reason: str) -> Json:
        """The last chunk of a choice."""
        return self._choice(index, "", finish_reason=finish_reason)

    def _choice(self, index: int, text: str, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
        return self._chunk([{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}])


def model_object(id: str, created: int, max_model_len: int) -> Json:
    """One served model; `created` is in Unix seconds, `max_model_len` (vLLM's name) its context in tokens."""
    return {
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "longturn",
        "root": id,
        "parent": None,
        "max_model_len": max_model_len,
    }


def model_list(models: Sequence[Json]) -> Json:
    """The models that are served, from `model_object`."""
    return {"object": "list", "data": list(models)}


def error_status(error: Exception) -> int:
    """The HTTP status that goes with `error_body`."""
    return error.status if isinstance(error, RequestError) else 500


def error_body(error: Exception) -> Json:
    """OpenAI's error object. What is no error of ours is not shown: its message could hold content or paths."""
    if isinstance(error, RequestError):
        return _error(str(error), error.kind, error.param, error.code)
    if isinstance(error, LongturnError):
        return _error(str(error), "server_error", None, None)
    return _error(f"Internal error ({type(error).__name__}): see the server's log.", "server_error", None, None)


def _error(message: str, kind: str, param: str | None, code: str | None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
