"""`render`: from a view to the messages of a request, and to bytes that are the same in every process.

Messages have OpenAI's chat form, less what providers name differently: a file is a content part `{"type": "file",
"file": {name, media_type, digest, size}}`, to be replaced by its bytes on the way out, and a model's reasoning is a
list `reasoning` of `{text, data}` beside its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from longturn.conversation.artifacts.handle import handle_of
from longturn.conversation.edits.prune import ARGUMENTS, PLACEHOLDER
from longturn.conversation.item import Item
from longturn.conversation.parts import File, Part, Reasoning, Summary, Text, ToolCall, ToolResult, Tools
from longturn.conversation.view.fold import View
from longturn.conversation.view.items import INTERRUPTED, tool_name

_JSON = msgspec.json.Encoder(order="sorted")
BETWEEN = b"\n"
"""Ends each segment: JSON text holds none, so bytes that extend others have all their segments first."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request's tools and messages, and as canonical JSON.

    tools: definitions, sorted by name; messages: as providers' clients take them; numbers: of the entry in the history
    that each message comes from; segments: one line of JSON of the tools and of each message. Within an epoch the
    segments of a request begin with those of the request before it.
    """

    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    numbers: list[int]
    segments: list[bytes]
    items: int
    """How many of the view's items these are."""

    @property
    def data(self) -> bytes:
        """All segments: what is compared, kept as a digest, and shown to people."""
        return b"".join(self.segments)

    @property
    def digest(self) -> str:
        """SHA-256 of `data`."""
        return hashlib.sha256(self.data).hexdigest()

    def extends(self, other: Rendered) -> bool:
        """Whether this begins with all bytes of `other`."""
        return self.segments[: len(other.segments)] == other.segments


def render(view: View) -> Rendered:
    """What the next request sends. Remembered in the view, so that views folded onto it only render what is new."""
    before = view.rendered
    if before is None:
        tools = [definition for item in view.items if item.kind == "tools" for definition in _tools(view, item)]
        before = Rendered(tools, [], [], [_segment(tools)], sum(item.kind == "tools" for item in view.items))
    messages = list(before.messages)
    numbers = list(before.numbers)
    segments = list(before.segments)
    for group in _grouped(view.items[before.items :]):
        for message in _messages(view, group):
            messages.append(message)
            numbers.append(group[0].message)
            segments.append(_segment(message))
    view.rendered = Rendered(before.tools, messages, numbers, segments, len(view.items))
    return view.rendered


def _grouped(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Items that are sent as one message together: what was said as one, but for results; never two extracts."""
    group: list[Item] = []
    for item in items:
        if group and (item.shape == "extract" or _whose(group[-1]) != _whose(item)):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _whose(item: Item) -> tuple[int, str, bool, bool]:
    return item.message, _role(item), item.part < 0, item.shape == "extract"


def _role(item: Item) -> str:
    return "tool" if item.kind == "result" else item.role


def _segment(value: Any) -> bytes:
    return _JSON.encode(value) + BETWEEN


def _tools(view: View, item: Item) -> Sequence[dict[str, Any]]:
    part = view.messages[item.message].parts[item.part]
    assert isinstance(part, Tools)
    return sorted(part.definitions, key=tool_name)


def _messages(view: View, items: list[Item]) -> list[dict[str, Any]]:
    """What is sent of one message: results are messages of their own, all else is one."""
    role = _role(items[0])
    if role == "tool":
        return [{"role": "tool", "tool_call_id": item.call, "content": _text(view, item)} for item in items]
    parts = [(item, _part(view, item)) for item in items]
    message: dict[str, Any] = {"role": role}
    if reasoning := [_reasoning(part) for _, part in parts if isinstance(part, Reasoning)]:
        message["reasoning"] = reasoning
    texts = [_text(view, item) for item in items if item.kind in ("system", "text", "summary")]
    files = [_file(part) for _, part in parts if isinstance(part, File)]
    if role == "assistant":
        message["content"] = "".join(texts)
        if calls := [_call(item, part) for item, part in parts if isinstance(part, ToolCall)]:
            message["tool_calls"] = calls
    elif files or len(texts) > 1:
        message["content"] = [*({"type": "text", "text": text} for text in texts), *files]
    else:
        message["content"] = "".join(texts)
    return [message]


def _part(view: View, item: Item) -> Part | None:
    return view.messages[item.message].parts[item.part] if item.part >= 0 else None


def _text(view: View, item: Item) -> str:
    """The words of an item, in its shape."""
    if item.shape == "placeholder":
        return PLACEHOLDER
    if item.at in view.texts:
        return view.texts[item.at]
    part = _part(view, item)
    if part is None:
        return INTERRUPTED
    assert isinstance(part, Text | Summary | ToolResult)
    text = part.text
    if item.shape == "reference" and item.refers_to is not None:
        return _reference(view.places[item.refers_to])
    if item.cut is not None:
        if item.shape == "preview":
            return _preview(text, *item.cut, handle_of(item.content))
        return f"[From message {item.message} of this conversation]\n{text[slice(*item.cut)]}"
    return text


def _reference(other: Item) -> str:
    of = f" on {other.resource}" if other.resource else ""
    return f"[Same content as the result of call {other.call} ({other.tool}{of}) above: unchanged since then]"


def _preview(text: str, head: int, tail: int, handle: str) -> str:
    """Head and tail of a text, at whole lines where those are not too far; all of it where they are all of it."""
    if head + tail >= len(text):
        return text
    first = text[:head]
    last = text[len(text) - tail :] if tail else ""
    if (end := first.rfind("\n")) > head // 2:
        first = first[: end + 1]
    if -1 < (start := last.find("\n")) < tail // 2:
        last = last[start + 1 :]
    left_out = len(text) - len(first) - len(last)
    note = (
        f"[{left_out:,} of {len(text):,} characters are left out here. All are kept as {handle}: "
        "artifact_read gives any range of lines, artifact_search finds words in it]"
    )
    return f"{first}\n{note}\n{last}"


def _reasoning(part: Reasoning) -> dict[str, Any]:
    return {"text": part.text} if part.data is None else {"text": part.text, "data": part.data}


def _file(part: File) -> dict[str, Any]:
    return {"type": "file", "file": {name: getattr(part, name) for name in ("name", "media_type", "digest", "size")}}


def _call(item: Item, part: ToolCall) -> dict[str, Any]:
    arguments = ARGUMENTS if item.shape == "placeholder" else part.arguments
    function = {"name": part.tool, "arguments": arguments}
    return {"id": part.call, "type": "function", "function": function}
