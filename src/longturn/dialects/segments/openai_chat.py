"""OpenAI's Chat Completions: tools, the leading system and developer messages, the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from longturn.dialects.segments import openai
from longturn.dialects.segments.form import (
    Level,
    Mark,
    Prompt,
    Segment,
    as_dict,
    as_list,
    as_name,
    rendered_order,
    settings,
)

IMAGES = ("image_url",)
MEDIA = ("input_audio", "file")


def parse(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a Chat Completions request, of OpenAI itself or of a server that speaks its dialect."""
    segments: list[Segment] = []
    marks: list[Mark] = []
    for i, tool in enumerate(as_list(body.get("tools"))):
        segments.append(Segment("tools", f"tools[{i}]", f"$.tools[{i}]", "tool", "tool", tool))
    head = True
    systems = 0
    for k, message in enumerate(map(as_dict, as_list(body.get("messages")))):
        role = str(message.get("role"))
        head = head and role in ("system", "developer")
        level: Level = "system" if head else "messages"
        for j, (kind, value, path, part) in enumerate(_parts(message, f"$.messages[{k}]")):
            name = f"system[{systems}]" if head else f"messages[{k}].block[{j}]"
            systems += head
            segments.append(Segment(level, name, path, role, kind, value, -1 if head else k))
            if mark := openai.breakpoint_of(part, len(segments) - 1, path.removesuffix(".text")):
                marks.append(mark)
    marking = openai.marking(body, marks)
    return Prompt(
        provider="openai-chat",
        model=str(body.get("model") or ""),
        segments=tuple(segments),
        marking=marking,
        marks=openai.placed(marks, segments, marking),
        settings=settings(
            {
                "tool_choice": (openai.choice(body), "$.tool_choice", "tools"),
                "service_tier": (body.get("service_tier"), "$.service_tier", "tools"),
                "parallel_tool_calls": (body.get("parallel_tool_calls"), "$.parallel_tool_calls", "tools"),
                "effort": (body.get("reasoning_effort"), "$.reasoning_effort", "tools"),
                "verbosity": (body.get("verbosity"), "$.verbosity", "tools"),
                "format": (body.get("response_format"), "$.response_format", "tools"),
            },
            openai.DEFAULTS,
        ),
        order=rendered_order(body, ("tools", "messages")),
        cache_key=as_name(body.get("prompt_cache_key")),
        ttl=openai.life(body),
    )


def _parts(message: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Kind, value and JSON path of what a message renders, and the part that may carry a mark."""
    for name in ("reasoning_content", "reasoning"):
        if reasoning := message.get(name):
            yield "thinking", reasoning, f"{path}.{name}", None
    content = message.get("content")
    result = message.get("role") == "tool"
    if isinstance(content, str):
        if content or result:
            yield "tool_result" if result else "text", content, f"{path}.content", None
    else:
        for i, part in enumerate(map(as_dict, as_list(content))):
            kind, at = str(part.get("type")), f"{path}.content[{i}]"
            if kind in ("text", "refusal"):
                yield "tool_result" if result else "text", str(part.get(kind) or ""), f"{at}.{kind}", part
            else:
                bare = {key: value for key, value in part.items() if key != "prompt_cache_breakpoint"}
                yield "image" if kind in IMAGES else "media" if kind in MEDIA else "other", bare, at, part
    for i, call in enumerate(as_list(message.get("tool_calls"))):
        yield "tool_use", call, f"{path}.tool_calls[{i}]", None
