"""What OpenAI's two dialects share: their cache's two regimes, and the settings that change a prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from longturn.dialects.segments.form import Mark, Segment, as_dict

DEFAULTS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "effort": ("medium",),
    "verbosity": ("medium",),
    "format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
}
FAMILY = re.compile(r"gpt-(\d+)(?:\.(\d+))?")


def by_marks(body: Mapping[str, Any], marks: list[Mark]) -> bool:
    """Whether hits exist only at breakpoints that the request names or implies: from gpt-5.6 on."""
    if marks or body.get("prompt_cache_options"):
        return True
    found = FAMILY.search(str(body.get("model")))
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 6)


def marking(body: Mapping[str, Any], marks: list[Mark]) -> Literal["explicit", "implicit", "automatic"]:
    """How the request's prefix is marked; see `Prompt`."""
    if not by_marks(body, marks):
        return "automatic"
    return "explicit" if as_dict(body.get("prompt_cache_options")).get("mode") == "explicit" else "implicit"


def life(body: Mapping[str, Any]) -> str | None:
    """How long the request asks its prefix to be kept: `30m`, `12h`, `24h`, `in_memory`, or None."""
    life = as_dict(body.get("prompt_cache_options")).get("ttl") or body.get("prompt_cache_retention")
    return str(life) if life else None


def breakpoint_of(part: Any, index: int, path: str) -> Mark | None:
    """The mark on a content part, if it has one."""
    given = as_dict(part).get("prompt_cache_breakpoint")
    return Mark(index, f"{path}.prompt_cache_breakpoint", as_dict(given).get("ttl")) if given else None


def choice(body: Mapping[str, Any]) -> Any:
    """The tool choice, as far as it may show in the prompt: which of the tools are allowed does not."""
    given = body.get("tool_choice")
    return None if as_dict(given).get("type") == "allowed_tools" else given


def placed(marks: list[Mark], segments: list[Segment], marking: str) -> tuple[Mark, ...]:
    """All marks in the prompt's order: the explicit ones and, where the provider adds to them, the implied ones."""
    return tuple(sorted(marks + (_implied(segments) if marking == "implicit" else []), key=lambda mark: mark.index))


def _implied(segments: list[Segment]) -> list[Mark]:
    """The ends that implicit marking adds: of user messages, of groups of tool results, of the leading instructions.

    The last of them is where the provider writes; it looks for the earlier ones, too.
    """
    marks = []
    for i, segment in enumerate(segments):
        after = segments[i + 1] if i + 1 < len(segments) else None
        if after is not None and (after.level, after.message) == ("messages", segment.message):
            continue
        user = segment.role == "user"
        results = segment.kind == "tool_result" and (after is None or after.kind != "tool_result")
        head = segment.level == "system" and (after is None or after.level != "system")
        if user or results or head:
            marks.append(Mark(i, segment.path, automatic=True))
    return marks
