"""OpenAI's Responses: tools, instructions and leading developer messages, the items of the input."""

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

TEXTS = ("input_text", "output_text", "text", "refusal")
# What an item says about itself; it is not rendered.
LABELS = ("id", "status")


def parse(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a Responses request, as far as it is sent: what `previous_response_id` brings is not known here."""
    segments: list[Segment] = []
    marks: list[Mark] = []
    for i, tool in enumerate(as_list(body.get("tools"))):
        segments.append(Segment("tools", f"tools[{i}]", f"$.tools[{i}]", "tool", "tool", tool))
    systems = 0
    if instructions := body.get("instructions"):
        segments.append(Segment("system", "system[0]", "$.instructions", "developer", "text", instructions))
        systems = 1
    given = body.get("input")
    # A string is shorthand for one user message.
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given)
    head = True
    for k, item in enumerate(map(as_dict, items)):
        role = str(item.get("role") or ("user" if str(item.get("type")).endswith("_output") else "assistant"))
        head = head and role in ("system", "developer")
        level: Level = "system" if head else "messages"
        base = "$.input" if isinstance(given, str) else f"$.input[{k}]"
        for j, (kind, value, path, part) in enumerate(_parts(item, base)):
            name = f"system[{systems}]" if head else f"messages[{k}].block[{j}]"
            systems += head
            who = "tool" if kind == "tool_result" else role
            segments.append(Segment(level, name, path, who, kind, value, -1 if head else k))
            if mark := openai.breakpoint_of(part, len(segments) - 1, path.removesuffix(".text")):
                marks.append(mark)
    marking = openai.marking(body, marks)
    reasoning, text = as_dict(body.get("reasoning")), as_dict(body.get("text"))
    return Prompt(
        provider="openai",
        model=str(body.get("model") or ""),
        segments=tuple(segments),
        marking=marking,
        marks=openai.placed(marks, segments, marking),
        settings=settings(
            {
                "tool_choice": (openai.choice(body), "$.tool_choice", "tools"),
                "service_tier": (body.get("service_tier"), "$.service_tier", "tools"),
                "parallel_tool_calls": (body.get("parallel_tool_calls"), "$.parallel_tool_calls", "tools"),
                "effort": (reasoning.get("effort"), "$.reasoning.effort", "tools"),
                "reasoning_context": (reasoning.get("context"), "$.reasoning.context", "messages"),
                "verbosity": (text.get("verbosity"), "$.text.verbosity", "tools"),
                "format": (text.get("format"), "$.text.format", "tools"),
                "context_management": (body.get("context_management"), "$.context_management", "tools"),
            },
            openai.DEFAULTS,
        ),
        order=rendered_order(body, ("tools", "instructions", "input")),
        cache_key=as_name(body.get("prompt_cache_key")),
        ttl=openai.life(body),
    )


def _parts(item: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str, Any]]:
    """Kind, value and JSON path of what an item renders, and the part that may carry a mark."""
    kind = str(item.get("type") or "message")
    if kind != "message":
        bare = {key: value for key, value in item.items() if key not in LABELS}
        if kind.endswith("_output"):
            yield "tool_result", _output(bare), path, _marked(item.get("output"))
        elif kind == "reasoning":
            yield "thinking", bare, path, None
        elif kind.endswith("_call"):
            yield "tool_use", bare, path, None
        else:
            yield "compaction" if kind.startswith("compaction") else "other", bare, path, None
        return
    content = item.get("content")
    if isinstance(content, str):
        yield "text", content, path if path == "$.input" else f"{path}.content", None
        return
    for i, part in enumerate(map(as_dict, as_list(content))):
        what, at = str(part.get("type")), f"{path}.content[{i}]"
        if what in TEXTS:
            field = "refusal" if what == "refusal" else "text"
            yield "text", str(part.get(field) or ""), f"{at}.{field}", part
        else:
            bare = {key: value for key, value in part.items() if key != "prompt_cache_breakpoint"}
            yield "image" if what == "input_image" else "media", bare, at, part


def _output(item: dict[str, Any]) -> dict[str, Any]:
    """A tool result without marks; a list of one text is the same as the string."""
    output = item.get("output")
    if not isinstance(output, list):
        return item
    parts = [{key: value for key, value in as_dict(p).items() if key != "prompt_cache_breakpoint"} for p in output]
    texts = [part.get("text") for part in parts if part.get("type") in TEXTS]
    return {**item, "output": texts[0] if len(parts) == len(texts) == 1 else parts}


def _marked(output: Any) -> Any:
    """The part of a tool result that carries a mark, if any."""
    parts = map(as_dict, output if isinstance(output, list) else [])
    return next((part for part in parts if part.get("prompt_cache_breakpoint")), None)
