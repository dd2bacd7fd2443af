"""Gemini's generateContent: tools, systemInstruction, contents; or a cached resource and the contents after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.dialects.segments.form import (
    Level,
    Prompt,
    Segment,
    as_dict,
    as_list,
    as_name,
    rendered_order,
    settings,
)

DEFAULTS: dict[str, tuple[Any, ...]] = {
    "tool_config": ({}, {"functionCallingConfig": {"mode": "AUTO"}}),
    "response_mime_type": ("text/plain",),
}
# The REST API takes both spellings.
SNAKE = {
    "system_instruction": "systemInstruction",
    "tool_config": "toolConfig",
    "generation_config": "generationConfig",
    "cached_content": "cachedContent",
}


def parse(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a generateContent request. How Gemini orders it inside is not disclosed: this is its advice."""
    given = {SNAKE.get(key, key): value for key, value in body.items()}
    spelled = {SNAKE.get(key, key): key for key in body}
    segments: list[Segment] = []
    for i, tool in enumerate(as_list(given.get("tools"))):
        declared = as_dict(tool).get("functionDeclarations") or as_dict(tool).get("function_declarations")
        if not isinstance(declared, list):
            segments.append(
                Segment("tools", f"tools[{len(segments)}]", f"$.tools[{i}]", "tool", "tool", tool),
            )
            continue
        key = "functionDeclarations" if "functionDeclarations" in tool else "function_declarations"
        for j, function in enumerate(declared):
            path = f"$.tools[{i}].{key}[{j}]"
            segments.append(Segment("tools", f"tools[{len(segments)}]", path, "tool", "tool", function))
    system = given.get("systemInstruction")
    if system is not None:
        path = f"$.{spelled['systemInstruction']}"
        segments += _parts("system", "system", system, path, -1)
    contents = given.get("contents")
    for k, content in enumerate(as_list(contents)):
        path = f"$.contents[{k}]" if isinstance(contents, list) else "$.contents"
        segments += _parts("messages", f"messages[{k}].block", content, path, k)
    config = as_dict(given.get("generationConfig"))
    at = f"$.{spelled.get('generationConfig', 'generationConfig')}"
    return Prompt(
        provider="gemini",
        model=str(given.get("model") or "").removeprefix("models/"),
        segments=tuple(segments),
        marking="automatic",
        settings=settings(
            {
                "tool_config": (given.get("toolConfig"), f"$.{spelled.get('toolConfig', 'toolConfig')}", "tools"),
                "thinking": (config.get("thinkingConfig"), f"{at}.thinkingConfig", "tools"),
                "response_schema": (
                    config.get("responseSchema") or config.get("responseJsonSchema"),
                    f"{at}.{'responseSchema' if config.get('responseSchema') else 'responseJsonSchema'}",
                    "tools",
                ),
                "response_mime_type": (config.get("responseMimeType"), f"{at}.responseMimeType", "tools"),
            },
            DEFAULTS,
        ),
        order=rendered_order(given, ("tools", "systemInstruction", "contents")),
        handle=as_name(given.get("cachedContent")),
    )


def _parts(level: Level, name: str, content: Any, path: str, message: int) -> list[Segment]:
    """Segments of one content: an object with parts, or a string as the SDKs accept it."""
    role = "system" if level == "system" else str(as_dict(content).get("role") or "user")
    if isinstance(content, str):
        return [Segment(level, f"{name}[0]", path, role, "text", content, message)]
    found = []
    parts = as_dict(content).get("parts")
    for i, part in enumerate(as_list(parts)):
        at = f"{path}.parts[{i}]" if isinstance(parts, list) else f"{path}.parts"
        kind = _kind(as_dict(part))
        if kind == "text" and set(part) == {"text"}:
            found.append(Segment(level, f"{name}[{i}]", f"{at}.text", role, kind, str(part["text"]), message))
        else:
            found.append(Segment(level, f"{name}[{i}]", at, role, kind, part, message))
    return found


def _kind(part: dict[str, Any]) -> str:
    if part.get("thought"):
        return "thinking"
    for names, kind in (
        (("functionCall", "function_call"), "tool_use"),
        (("functionResponse", "function_response"), "tool_result"),
    ):
        if any(name in part for name in names):
            return kind
    for name in ("inlineData", "inline_data", "fileData", "file_data"):
        if name in part:
            data = as_dict(part[name])
            mime = str(data.get("mimeType") or data.get("mime_type") or "")
            return "image" if mime.startswith("image/") else "media"
    return "text" if "text" in part else "other"
