"""Blocks of Anthropic's messages. What this server cannot read is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from longturn.dialects.openai_messages import Wire

REFUSED = {
    "image": "images are not supported: this server reads text only",
    "container_upload": "files are not supported: put their text into the message",
}


class CacheControl(Wire):
    """Up to the block that carries it, the prompt shall be cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Block(Wire):
    cache_control: CacheControl | None = None


class Text(_Block):
    """A text."""

    type: Literal["text"] = "text"
    text: str
    citations: Any = None

    @model_validator(mode="after")
    def _has_text(self) -> Text:
        if not self.text:
            marked = "cache_control cannot be set for empty text blocks"
            raise ValueError(marked if self.cache_control else "text content blocks must be non-empty")
        return self


class Thinking(Wire):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinking(Wire):
    """Reasoning that nobody but its provider can read; left out of the prompt."""

    type: Literal["redacted_thinking"]


class ToolUse(_Block):
    """A call of a tool that the model has made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]


class Compaction(_Block):
    """What stands for everything before it. content: None where the summary failed; then it stands for nothing."""

    type: Literal["compaction"]
    content: str | None = Field(default=None, min_length=1)


def _as_blocks(content: object) -> object:
    """A string is shorthand for one text block; an empty one for none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def _known(block: object) -> object:
    if not isinstance(block, dict):
        return block
    kind, source = block.get("type"), block.get("source")
    if not isinstance(kind, str):
        raise ValueError('each block needs a type, such as "text"')
    if kind == "document" and not (isinstance(source, dict) and source.get("type") in ("text", "content")):
        raise ValueError("documents are read as plain text only: send source.type text, or the text itself")
    if kind not in _KNOWN:
        raise ValueError(REFUSED.get(kind, f"blocks of type {kind!r} are not supported by this server"))
    return block


class _Source(Wire):
    """A document's text."""

    type: Literal["text", "content"]
    data: str | None = None
    content: Annotated[list[Text], BeforeValidator(_as_blocks)] = Field(default=[])

    @property
    def text(self) -> str:
        return self.data or "\n".join(part.text for part in self.content)


class Document(_Block):
    """A document in plain text."""

    type: Literal["document"]
    source: _Source
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        """The document with what is known about it."""
        return "\n".join(filter(None, (self.title, self.context, self.source.text)))


class SearchResult(_Block):
    """What a search has found."""

    type: Literal["search_result"]
    source: str
    title: str
    content: list[Text]

    @property
    def text(self) -> str:
        """The result with its source."""
        return "\n".join([self.title, self.source, *(part.text for part in self.content)])


Readable = Annotated[Text | Document | SearchResult, Field(discriminator="type"), BeforeValidator(_known)]


class ToolResult(_Block):
    """What a tool has answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[Readable], BeforeValidator(_as_blocks)] = Field(default=[])
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """The answer as the model sees it."""
        text = "\n".join(part.text for part in self.content)
        return f"Error: {text}" if self.is_error else text


_KNOWN = (
    *("text", "document", "search_result", "thinking", "redacted_thinking"),
    *("tool_use", "tool_result", "compaction"),
)

Block = Annotated[
    Text | Document | SearchResult | Thinking | RedactedThinking | ToolUse | ToolResult | Compaction,
    Field(discriminator="type"),
    BeforeValidator(_known),
]
Blocks = Annotated[list[Block], BeforeValidator(_as_blocks)]
Texts = Annotated[list[Text], BeforeValidator(_as_blocks)]


class Message(Wire):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="after")
    def _of_its_role(self) -> Message:
        for block in self.content:
            if isinstance(block, ToolUse | Thinking | RedactedThinking) and self.role != "assistant":
                raise ValueError(f"{block.type} blocks can only be in assistant messages")
            if isinstance(block, ToolResult) and self.role != "user":
                raise ValueError("tool_result blocks can only be in user messages")
            if self.role == "system" and not isinstance(block, Text):
                raise ValueError("a system message holds text only")
        return self
