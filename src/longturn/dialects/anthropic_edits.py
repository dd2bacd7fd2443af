"""Anthropic's context editing: which parts of a request are cleared before the model sees it. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from longturn.dialects.openai_messages import Wire

Json = dict[str, Any]

CLEARED = "[This tool result was cleared to save room. Call the tool again if it is needed.]"
"""What stands for a result that was cleared."""
TRIGGER_TOKENS = 100_000
COMPACTION_TOKENS = 150_000
LEAST_COMPACTION_TOKENS = 50_000


class Trigger(Wire):
    """How large a prompt must be for an edit to act."""

    type: Literal["input_tokens", "tool_uses"] = "input_tokens"
    value: int = Field(ge=1)


class Keep(Wire):
    """How many of the latest calls or turns stay."""

    type: Literal["tool_uses", "thinking_turns", "all"]
    value: int | None = Field(default=None, ge=0)


class AtLeast(Wire):
    """The least that an edit must clear to be worth the cached prefix that it breaks."""

    type: Literal["input_tokens"] = "input_tokens"
    value: int = Field(ge=0)


class ClearToolUses(Wire):
    """Clear the results of old calls, perhaps with the calls' inputs."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Trigger = Trigger(value=TRIGGER_TOKENS)
    keep: Keep = Keep(type="tool_uses", value=3)
    clear_at_least: AtLeast | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None

    @property
    def kept(self) -> int:
        """How many of the latest calls stay."""
        return 0 if self.keep.value is None else self.keep.value


def _keep_all(value: object) -> object:
    return {"type": "all"} if value == "all" else value


class ClearThinking(Wire):
    """Clear the thinking of old turns."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[Keep, BeforeValidator(_keep_all)] = Keep(type="thinking_turns", value=1)


class Compact(Wire):
    """Replace the whole conversation by a summary. trigger: None leaves it to the server."""

    type: Literal["compact_20260112"]
    trigger: Trigger | None = None
    pause_after_compaction: bool = False
    instructions: str | None = None


def _known(edit: object) -> object:
    if isinstance(edit, dict) and (kind := edit.get("type")) not in _KINDS:
        raise ValueError(f"edits of type {kind!r} are not supported: use one of {', '.join(_KINDS)}")
    return edit


_KINDS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
Edit = Annotated[ClearToolUses | ClearThinking | Compact, Field(discriminator="type"), BeforeValidator(_known)]


class ContextManagement(Wire):
    """The edits of a request, in the order in which they act; each kind at most once."""

    edits: list[Edit] = Field(default=[])

    @model_validator(mode="after")
    def _in_order(self) -> ContextManagement:
        kinds = [edit.type for edit in self.edits]
        if len(set(kinds)) < len(kinds):
            raise ValueError("each type of edit can be given once")
        if "clear_thinking_20251015" in kinds[1:]:
            raise ValueError("clear_thinking_20251015 must be the first edit")
        return self


def tool_uses(body: Mapping[str, Any]) -> list[Json]:
    """All calls in a request that has been checked, oldest first."""
    return [block for block in _blocks(body) if block.get("type") == "tool_use"]


def clear_tool_uses(body: Mapping[str, Any], edit: ClearToolUses) -> tuple[Json, int]:
    """The request with old results cleared, and of how many calls."""
    calls = tool_uses(body)
    old = calls[: max(len(calls) - edit.kept, 0)]
    names = {call["id"]: call["name"] for call in old if call["name"] not in (edit.exclude_tools or ())}
    inputs = edit.clear_tool_inputs

    def cleared(block: Json) -> Json:
        if block.get("type") == "tool_result" and block["tool_use_id"] in names:
            return {**block, "content": CLEARED}
        if block.get("type") == "tool_use" and block["id"] in names:
            return {**block, "input": {}} if inputs is True or (inputs and block["name"] in inputs) else block
        return block

    return _with_blocks(body, lambda _, blocks: [cleared(block) for block in blocks]), len(names)


def clear_thinking(body: Mapping[str, Any], edit: ClearThinking) -> tuple[Json, int]:
    """The request without the thinking of old turns, and of how many turns it was taken."""
    turns = [n for n, message in enumerate(body["messages"]) if any(map(_thinks, _content(message)))]
    kept = len(turns) if edit.keep.type == "all" else edit.keep.value or 0
    old = turns[: max(len(turns) - kept, 0)]

    def cleared(message: int, blocks: list[Json]) -> list[Json]:
        # A turn of thinking alone stays: a message needs content.
        left = [block for block in blocks if not _thinks(block)]
        return left if message in old and left else blocks

    return _with_blocks(body, cleared), len(old)


def _with_blocks(body: Mapping[str, Any], change: Callable[[int, list[Json]], list[Json]]) -> Json:
    messages = [
        {**message, "content": change(n, content)} if isinstance(content := message["content"], list) else message
        for n, message in enumerate(body["messages"])
    ]
    return {**body, "messages": messages}


def _blocks(body: Mapping[str, Any]) -> list[Json]:
    return [block for message in body["messages"] for block in _content(message)]


def _content(message: Json) -> list[Json]:
    content = message["content"]
    return content if isinstance(content, list) else []


def _thinks(block: Json) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking")
