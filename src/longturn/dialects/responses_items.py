"""The items of OpenAI's Responses: what they may be, and the messages they become for a chat template."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Discriminator, Tag

from longturn.dialects.openai_messages import Wire, arguments_of

Json = dict[str, Any]

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}
"""Kind of item -> how its id begins."""
TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
SUMMARY = "This is what came before in this conversation, in short. Go on from here.\n\n{summary}"


def _text(content: object) -> object:
    """A string as it is; a list of text parts joined by line breaks, as in Chat Completions."""
    return "\n".join(map(_part, content)) if isinstance(content, list) else content


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) and kind in TEXTS else None
    if isinstance(text, str):
        return text
    if isinstance(kind, str) and kind not in TEXTS:
        raise ValueError(f"parts of type {kind!r} are not supported: this server reads text only")
    raise ValueError('each part must look like {"type": "input_text", "text": "..."}')


def _summary(blob: object) -> object:
    try:
        return opened(blob) if isinstance(blob, str) else blob
    except ValueError:
        raise ValueError("this server did not make it: send what /v1/responses/compact gave, unchanged") from None


Text = Annotated[str, BeforeValidator(_text)]


class Message(Wire):
    """What somebody said."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class Call(Wire):
    """A function that the model has called."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = "{}"


class Result(Wire):
    """What a called function gave back."""

    type: Literal["function_call_output"]
    call_id: str
    output: Text


class Reasoning(Wire):
    """Reasoning of an earlier answer. The templates of open models leave it out, and so it is not shown."""

    type: Literal["reasoning"]


class Compaction(Wire):
    """What an earlier compaction has left of the conversation. encrypted_content: read as the summary in it."""

    type: Literal["compaction", "compaction_summary"]
    encrypted_content: Annotated[str, BeforeValidator(_summary)]


def _kind(item: Any) -> str:
    kind = str(item.get("type") or "message") if isinstance(item, dict) else "message"
    return "compaction" if kind == "compaction_summary" else kind


def _known(item: Any) -> Any:
    if (kind := _kind(item)) not in PREFIXES:
        raise ValueError(f"items of type {kind!r} are not supported: this server has functions as its only tools")
    return item


Item = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[Call, Tag("function_call")]
    | Annotated[Result, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[Compaction, Tag("compaction")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


def compactable(items: Sequence[Any]) -> bool:
    """Whether anything is shown to the model that a compaction would put out of sight."""
    return any(not isinstance(item, Reasoning | Compaction) and not _said(item) for item in items[_newest(items) :])


def messages(items: Sequence[Any]) -> list[Json]:
    """The items for `apply_chat_template`: an answer's text and the calls that follow it are one message.

    Of what comes before the latest compaction only what was said to the model is shown.
    """
    newest = _newest(items)
    found: list[Json] = []
    for item in [*filter(_said, items[:newest]), *items[newest:]]:
        last = found[-1] if found else {}
        if isinstance(item, Message):
            found.append({"role": "system" if item.role == "developer" else item.role, "content": item.content})
        elif isinstance(item, Compaction):
            found.append({"role": "user", "content": SUMMARY.format(summary=item.encrypted_content)})
        elif isinstance(item, Result):
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif isinstance(item, Call):
            function = {"name": item.name, "arguments": arguments_of(item.arguments)}
            call = {"id": item.call_id, "type": "function", "function": function}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                found.append({"role": "assistant", "content": "", "tool_calls": [call]})
    return found


def _newest(items: Sequence[Any]) -> int:
    """Where the latest compaction is, 0 if there is none."""
    return max((at for at, item in enumerate(items) if isinstance(item, Compaction)), default=0)


def _said(item: Any) -> bool:
    return isinstance(item, Message) and item.role != "assistant"


def listed(given: str | Sequence[Json]) -> list[Json]:
    """An input as the list of its items, each with its type and an id, as they are stored and shown."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [_complete(item) for item in items]


def new_id(kind: str) -> str:
    """A fresh id of an item."""
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def sealed(summary: str) -> str:
    """A summary as `encrypted_content`. It only looks opaque: whoever may read the conversation may read this."""
    return base64.urlsafe_b64encode(msgspec.json.encode({"longturn": 1, "summary": summary})).decode()


def opened(blob: str) -> str:
    """The inverse of `sealed`. Raises ValueError for what that did not make."""
    try:
        content = msgspec.json.decode(base64.b64decode(blob, altchars=b"-_", validate=True))
        return str(content["summary"])
    except (binascii.Error, msgspec.DecodeError, TypeError, KeyError) as error:
        raise ValueError("not a summary of this server's") from error


def _complete(item: Json) -> Json:
    kind = _kind(item)
    whole = {"id": new_id(kind), "status": "completed", **item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item["role"] == "assistant" else "input_text"
        whole["content"] = [{"type": part, "text": item["content"]} | ({"annotations": []} if part[0] == "o" else {})]
    return whole
