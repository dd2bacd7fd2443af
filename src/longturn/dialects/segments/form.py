"""What a request becomes: ordered segments, cache marks and settings. The same form for every provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Level = Literal["tools", "system", "messages"]
LEVELS: tuple[Level, ...] = ("tools", "system", "messages")
"""In the order in which every provider renders them."""


@dataclass(frozen=True)
class Segment:
    """One piece of a prompt: a tool, a block of the system prompt or a block of a message.

    name: `tools[2]`, `system[0]` or `messages[3].block[1]`: the place in render order.
    path: JSON path of `value` in the body.
    kind: tool, text, image, media, thinking, tool_use, tool_result, compaction or other.
    value: what is rendered, without cache marks: the string of a text, else the JSON value.
    message: index of the message that it is part of; -1 in tools and system.
    """

    level: Level
    name: str
    path: str
    role: str
    kind: str
    value: Any
    message: int = -1

    @cached_property
    def text(self) -> str:
        """The value as written: a text itself, anything else as compact JSON with its keys in the given order."""
        return self.value if isinstance(self.value, str) else compact(self.value)

    @cached_property
    def canonical(self) -> str:
        """The value independent of serialisation: keys sorted, also inside strings that hold JSON."""
        return json.dumps(opened(self.value), sort_keys=True)

    @cached_property
    def rendered(self) -> tuple[str, str, str, str]:
        """What two segments that are rendered alike have in common."""
        return self.level, self.role, self.kind, self.text

    def same(self, other: Segment) -> bool:
        """Whether both are rendered to the same text."""
        return self.rendered == other.rendered


@dataclass(frozen=True)
class Mark:
    """A place up to which the prompt shall be cached.

    index: of the last segment inside; ttl: as the request says, or None; automatic: placed by the provider.
    """

    index: int
    path: str
    ttl: str | None = None
    automatic: bool = False


@dataclass(frozen=True)
class Setting:
    """A parameter that is part of what a provider caches. level: the first level that is lost when it changes."""

    value: Any
    path: str
    level: Level = "tools"


@dataclass(frozen=True)
class Prompt:
    """One request. `settings` hold only what changes a cached prefix; defaults that are spelled out are left away.

    segments: in the provider's render order.
    marks: in that order too; explicit ones and, where the request asks for it, the automatic one.
    order: the body's own top-level keys among those that are rendered, as they are written.
    cache_key: OpenAI's `prompt_cache_key`; handle: Gemini's `cachedContent`.
    marking: "explicit" where only marked prefixes are cached, "implicit" where the provider also places marks itself,
        "automatic" where there are no marks and any prefix may be found.
    """

    provider: str
    model: str
    segments: tuple[Segment, ...]
    marking: Literal["explicit", "implicit", "automatic"]
    marks: tuple[Mark, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    cache_key: str | None = None
    handle: str | None = None
    ttl: str | None = None


def compact(value: Any) -> str:
    """Compact JSON in the order of the keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def opened(value: Any) -> Any:
    """`value` with every string that holds a JSON object or list replaced by what it holds."""
    if isinstance(value, dict):
        return {key: opened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [opened(item) for item in value]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return opened(inner)
    return value


def settings(
    given: Mapping[str, tuple[Any, str, Level]], defaults: Mapping[str, tuple[Any, ...]]
) -> dict[str, Setting]:
    """The settings that are really set: None and values equal to one of the defaults are as good as absent."""
    return {
        name: Setting(value, path, level)
        for name, (value, path, level) in given.items()
        if value is not None and value not in defaults.get(name, ())
    }


def as_list(value: Any) -> list[Any]:
    """A list of blocks, whatever was given for it: nothing, one block, or a list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def as_name(value: Any) -> str | None:
    """A name that a client gave: as text, whatever it is."""
    return None if value is None else str(value)


def as_dict(value: Any) -> dict[str, Any]:
    """An object, or an empty one where the request has something else."""
    return value if isinstance(value, dict) else {}


def rendered_order(body: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `keys` that the body has, in its order."""
    return tuple(key for key in body if key in keys)
