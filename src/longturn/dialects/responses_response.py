"""Answers of OpenAI's Responses: the object, and the events of a stream that build it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longturn.dialects.openai_response import error_body
from longturn.dialects.responses_items import new_id
from longturn.dialects.tool_calls import ToolCall
from longturn.errors import QueueFull

Json = dict[str, Any]

ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields that an answer repeats from its request -> what they are where it does not have them."""


def response(id: str, created: int, request: Mapping[str, Any], status: str, output: Sequence[Json]) -> Json:
    """A response object. created: Unix seconds; request: its body, whose settings are repeated."""
    conversation = request.get("conversation")
    echoed = {name: default if request.get(name) is None else request[name] for name, default in ECHOED.items()}
    echoed["text"] = {"format": {"type": "text"}, **echoed["text"]}
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request["model"],
        "output": list(output),
        "service_tier": "default",
        "usage": None,
        "conversation": {"id": conversation} if isinstance(conversation, str) else conversation,
        **echoed,
    }


def incomplete(response: Json) -> Json:
    """The same answer, cut where it had reached its length."""
    return {**response, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


def failed(response: Json, error: Exception) -> Json:
    """The same answer, ended by an error."""
    code = "rate_limit_exceeded" if isinstance(error, QueueFull) else "server_error"
    return {**response, "status": "failed", "error": {"code": code, "message": error_body(error)["error"]["message"]}}


def input_tokens(count: int) -> Json:
    """The answer of /v1/responses/input_tokens."""
    return {"object": "response.input_tokens", "input_tokens": count}


def items(data: Sequence[Json], has_more: bool) -> Json:
    """A page of the items of an input."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": list(data), "first_id": first, "last_id": last, "has_more": has_more}


def deleted(id: str) -> Json:
    """What is said when a response has been deleted."""
    return {"id": id, "object": "response.deleted", "deleted": True}


class Output:
    """The items of one answer as they grow. Every method gives the events that say what is new, numbered in order.

    items: those that are complete.
    """

    def __init__(self) -> None:
        self.items: list[Json] = []
        self._message: Json | None = None
        self._text = ""
        self._logprobs: list[Json] = []
        self._number = 0

    @property
    def is_open(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._message is not None

    def started(self, response: Json) -> list[Json]:
        """The first events. response: as it is before anything has been generated."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=response) for kind in kinds]

    def text(self, delta: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        """More text, which opens a message if none is open."""
        events = [] if self.is_open else self._open()
        self._text += delta
        self._logprobs += logprobs
        return [*events, self._in_part("response.output_text.delta", delta=delta, logprobs=list(logprobs))]

    def call(self, call: ToolCall) -> list[Json]:
        """A whole call."""
        events = self.closed()
        item = {"id": new_id("function_call"), "type": "function_call", "status": "completed", "call_id": call.id}
        item |= {"name": call.name, "arguments": call.arguments}
        at = {"output_index": len(self.items)}
        part = {"item_id": item["id"], **at}
        events += [
            self._event("response.output_item.added", **at, item={**item, "status": "in_progress", "arguments": ""}),
            self._event("response.function_call_arguments.delta", **part, delta=call.arguments),
            self._event("response.function_call_arguments.done", **part, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", **at, item=item),
        ]
        self.items.append(item)
        return events

    def item(self, item: Json) -> list[Json]:
        """An item that is there at once."""
        at = {"output_index": len(self.items), "item": item}
        self.items.append(item)
        return [self._event(f"response.output_item.{what}", **at) for what in ("added", "done")]

    def closed(self, status: str = "completed") -> list[Json]:
        """The end of the open message, if there is one."""
        if self._message is None:
            return []
        part = self._part(self._text, self._logprobs)
        message = {**self._message, "status": status, "content": [part]}
        events = [
            self._in_part("response.output_text.done", text=self._text, logprobs=list(self._logprobs)),
            self._in_part("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=len(self.items), item=message),
        ]
        self.items.append(message)
        self._message, self._text, self._logprobs = None, "", []
        return events

    def ended(self, response: Json) -> list[Json]:
        """The last event, named after the status of the response."""
        return [self._event(f"response.{response['status']}", response=response)]

    def failed(self, response: Json, error: Exception) -> list[Json]:
        """The last events of a stream which fails midway."""
        told = error_body(error)["error"]
        event = self._event("error", code=told["code"] or told["type"], message=told["message"], param=told["param"])
        return [event, *self.ended(failed(response, error))]

    def _open(self) -> list[Json]:
        message = {"id": new_id("message"), "type": "message", "role": "assistant", "status": "in_progress"}
        self._message = {**message, "content": []}
        added = self._event("response.output_item.added", output_index=len(self.items), item=self._message)
        return [added, self._in_part("response.content_part.added", part=self._part("", []))]

    def _part(self, text: str, logprobs: Sequence[Json]) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

    def _in_part(self, kind: str, **fields: Any) -> Json:
        assert self._message is not None
        at = {"item_id": self._message["id"], "output_index": len(self.items), "content_index": 0}
        return self._event(kind, **at, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event
