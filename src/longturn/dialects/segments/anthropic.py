"""Anthropic's Messages: tools, system, messages; caching only up to marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from longturn.dialects.segments.form import (
    Level,
    Mark,
    Prompt,
    Segment,
    as_dict,
    as_list,
    rendered_order,
    settings,
)

KINDS = {
    "text": "text",
    "image": "image",
    "document": "media",
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "tool_use": "tool_use",
    "server_tool_use": "tool_use",
    "tool_result": "tool_result",
    "compaction": "compaction",
}
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ({"type": "auto"},),
    "thinking": ({"type": "disabled"},),
    "effort": ("high",),
    "speed": ("standard",),
}
UNMARKABLE = ("thinking",)


def parse(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a Messages request.

    Marks inside a tool result count for the result. Numbers of marks and their places are taken as they are given:
    whether the provider accepts them is for others to say.
    """
    segments: list[Segment] = []
    marks: list[Mark] = []

    def add(segment: Segment, *marked: tuple[Any, str]) -> None:
        segments.append(segment)
        marks.extend(
            Mark(len(segments) - 1, f"{path}.cache_control", as_dict(control).get("ttl"))
            for control, path in marked
            if control
        )

    for i, tool in enumerate(as_list(body.get("tools"))):
        path = f"$.tools[{i}]"
        add(
            Segment("tools", f"tools[{i}]", path, "tool", "tool", _bare(tool)),
            (as_dict(tool).get("cache_control"), path),
        )
    for i, (block, path) in enumerate(_blocks(body.get("system"), "$.system")):
        add(_segment("system", f"system[{i}]", path, "system", block, -1), *_controls(block, path))
    for k, message in enumerate(as_list(body.get("messages"))):
        role = str(as_dict(message).get("role"))
        for j, (block, path) in enumerate(_blocks(as_dict(message).get("content"), f"$.messages[{k}].content")):
            name = f"messages[{k}].block[{j}]"
            add(_segment("messages", name, path, role, block, k), *_controls(block, path))
    if control := as_dict(body.get("cache_control")):
        last = next((i for i in reversed(range(len(segments))) if _markable(segments[i])), None)
        if last is not None and last not in {mark.index for mark in marks}:
            marks.append(Mark(last, "$.cache_control", control.get("ttl"), automatic=True))
    output = as_dict(body.get("output_config"))
    return Prompt(
        provider="anthropic",
        model=str(body.get("model") or ""),
        segments=tuple(segments),
        marking="explicit",
        marks=tuple(sorted(marks, key=lambda mark: mark.index)),
        settings=settings(
            {
                "speed": (body.get("speed"), "$.speed", "system"),
                "tool_choice": (body.get("tool_choice"), "$.tool_choice", "messages"),
                "thinking": (body.get("thinking"), "$.thinking", "messages"),
                "effort": (output.get("effort"), "$.output_config.effort", "messages"),
                "output_format": (
                    output.get("format") or body.get("output_format"),
                    "$.output_config.format" if output.get("format") else "$.output_format",
                    "messages",
                ),
                "context_management": (body.get("context_management"), "$.context_management", "messages"),
                "betas": (sorted(as_list(body.get("betas"))) or None, "$.betas", "messages"),
            },
            DEFAULTS,
        ),
        order=rendered_order(body, ("tools", "system", "messages")),
    )


def _blocks(content: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Blocks with their JSON paths. A string is shorthand for one text block."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, path
        return
    for i, block in enumerate(as_list(content)):
        given = {"type": "text", "text": block} if isinstance(block, str) else as_dict(block)
        yield given, f"{path}[{i}]"


def _segment(level: Level, name: str, path: str, role: str, block: dict[str, Any], message: int) -> Segment:
    kind = KINDS.get(str(block.get("type")), "other")
    if kind == "text" and set(block) <= {"type", "text", "cache_control"}:
        # The path of a string is that of the content itself.
        inner = f"{path}.text" if path.endswith("]") else path
        return Segment(level, name, inner, role, "text", str(block.get("text") or ""), message)
    value = _bare(block)
    if kind == "tool_result":
        if not value.get("is_error"):
            value.pop("is_error", None)
        value["content"] = [_bare(inner) for inner, _ in _blocks(block.get("content"), "")]
    return Segment(level, name, path, role, kind, value, message)


def _controls(block: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    yield block.get("cache_control"), path
    if block.get("type") == "tool_result":
        for inner, at in _blocks(block.get("content"), f"{path}.content"):
            yield inner.get("cache_control"), at


def _bare(block: Any) -> dict[str, Any]:
    return {key: value for key, value in as_dict(block).items() if key != "cache_control"}


def _markable(segment: Segment) -> bool:
    return segment.kind not in UNMARKABLE and segment.value != ""
