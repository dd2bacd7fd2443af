"""Answers of Anthropic's Messages as JSON: whole, and as the events of a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from longturn.dialects.tool_calls import ToolCall

Json = dict[str, Any]

PIECE = 48
"""Characters of a call's input in one event."""


def new_message_id() -> str:
    """A fresh id of an answer."""
    return f"msg_{secrets.token_hex(12)}"


def new_call_id() -> str:
    """A fresh id of a tool's call."""
    return f"toolu_{secrets.token_hex(12)}"


def text_block(text: str) -> Json:
    """A text of an answer."""
    return {"type": "text", "text": text, "citations": None}


def tool_use_block(call: ToolCall) -> Json:
    """A call of a tool. Its arguments keep the order in which the model wrote them."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def compaction_block(summary: str | None) -> Json:
    """What a conversation was compacted to; None where that failed."""
    return {"type": "compaction", "content": summary}


def message(id: str, model: str, content: Sequence[Json], usage: Json, **more: Any) -> Json:
    """An answer. more: stop_reason and stop_sequence, which are null at the start of a stream; perhaps diagnostics."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(content),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
        **more,
    }


def message_start(message: Json) -> Json:
    """The first event: an answer without content."""
    return {"type": "message_start", "message": message}


def text_start(index: int) -> Json:
    """A text begins."""
    return {"type": "content_block_start", "index": index, "content_block": text_block("")}


def text_delta(index: int, text: str) -> Json:
    """More of a text."""
    return _delta(index, {"type": "text_delta", "text": text})


def tool_use(index: int, call: ToolCall) -> list[Json]:
    """A whole call: it begins empty, and its input follows as pieces of JSON."""
    text = call.arguments if call.arguments != "{}" else ""
    start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *(_delta(index, {"type": "input_json_delta", "partial_json": piece}) for piece in pieces),
        block_stop(index),
    ]


def compaction(index: int, summary: str | None, *, whole: bool = False) -> list[Json]:
    """A compaction block; whole: all of it in its start."""
    start = {
        "type": "content_block_start",
        "index": index,
        "content_block": compaction_block(summary if whole else None),
    }
    delta = [] if whole else [_delta(index, {"type": "compaction_delta", "content": summary})]
    return [start, *delta, block_stop(index)]


def block_stop(index: int) -> Json:
    """A block ends."""
    return {"type": "content_block_stop", "index": index}


def message_delta(stop_reason: str, stop_sequence: str | None, usage: Json, **more: Any) -> Json:
    """How the answer ended, and its final usage, which is cumulative. more: context_management."""
    delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    return {"type": "message_delta", "delta": delta, "usage": usage, **more}


def message_stop() -> Json:
    """The last event."""
    return {"type": "message_stop"}


def model_object(id: str, created: str, context: int) -> Json:
    """One served model. created: RFC 3339; context: its context in tokens."""
    return {
        "type": "model",
        "id": id,
        "display_name": id,
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def model_list(models: Sequence[Json]) -> Json:
    """The models that are served, on one page."""
    ids = [model["id"] for model in models]
    return {"data": list(models), "has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1]}


def _delta(index: int, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}
