"""From a request of Anthropic's Messages to a conversation for a chat template, with the places where its parts end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from longturn.dialects.anthropic_content import (
    Block,
    Compaction,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from longturn.dialects.anthropic_request import CountRequest
from longturn.dialects.talk import Talk

SUMMARY = "This is a summary of the conversation so far, in place of its messages:\n\n"


def talk(request: CountRequest, mark: Callable[[int], str] = lambda part: "") -> Talk:
    """The conversation. mark: see `Parts`; by default none is made.

    Neighbours of one role become one message. Thinking is handed to the template as `reasoning_content`, so that models
    see as much of it as they were trained to; what only its provider can read is left out. A compaction block takes the
    place of everything before it. An assistant message at the end is the beginning of the answer.
    """
    return _Writer(request, mark).talk


class Parts:
    """Where the segments of a request end, in the order of `dialects.segments`.

    of: for each segment the number of the part with whose end it ends. count: how many parts `talk` marks.
    Texts end with a mark of their own. Tools and calls are written by the template, where no mark can be put: they are
    taken to end where the next message begins.
    """

    def __init__(self, request: CountRequest) -> None:
        writer = _Writer(request, lambda part: "")
        self.of, self.count = writer.ends, writer.parts


class _Writer:
    """Writes the messages one block after another; each block is a segment."""

    def __init__(self, request: CountRequest, mark: Callable[[int], str]) -> None:
        self._mark = mark
        self._out: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        self.ends: list[int] = []
        self.parts = 0
        self._unmarked: list[int] = []
        """Segments that end where the next message begins."""
        for _ in request.tools:
            self._later()
        for block in request.system:
            self._say("system", block.text)
        *before, last = request.messages
        start = _start(request.messages)
        for number, message in enumerate(before):
            self._message(message, dropped=number < start)
        begun = ""
        if request.begun and not any(map(_compacts, last.content)):
            begun = self._begun(last)
        else:
            self._message(last, dropped=False)
        self._close()
        options = {} if request.thinking is None else {"enable_thinking": request.thinking.type != "disabled"}
        tools = [tool.for_template() for tool in request.tools] or None
        self.talk = Talk(self._out, tools, options, begun)

    def _part(self) -> int:
        self.parts += 1
        return self.parts - 1

    def _later(self) -> None:
        self._unmarked.append(len(self.ends))
        self.ends.append(-1)

    def _ended(self, text: str) -> str:
        """A segment's text with the mark of its end."""
        self.ends.append(self._part())
        return text + self._mark(self.ends[-1])

    def _close(self) -> str:
        """A mark that ends all segments which wait for one."""
        if not self._unmarked:
            return ""
        part = self._part()
        for segment in self._unmarked:
            self.ends[segment] = part
        self._unmarked = []
        return self._mark(part)

    def _say(self, role: str, text: str, **more: Any) -> None:
        last = self._out[-1] if self._out else None
        if last is not None and last["role"] == role != "tool" and "tool_calls" not in last:
            content = self._ended(text)
            last["content"] = f"{last['content']}\n{content}" if last["content"] else content
        else:
            opened = "" if role == "system" and last is None else self._close()
            self._out.append({"role": role, "content": opened + self._ended(text), **more})

    def _assistant(self) -> dict[str, Any]:
        if not self._out or self._out[-1]["role"] != "assistant":
            self._out.append({"role": "assistant", "content": self._close()})
        return self._out[-1]

    def _message(self, message: Message, *, dropped: bool) -> None:
        blocks: Sequence[Block] = message.content
        first = _start_in(blocks)
        for number, block in enumerate(blocks):
            if dropped or number < first:
                self.ends.append(self._part())
            else:
                self._block(message.role, block)

    def _block(self, role: str, block: Block) -> None:
        if isinstance(block, ToolUse):
            self._names[block.id] = block.name
            function = {"name": block.name, "arguments": block.input}
            calls = self._assistant().setdefault("tool_calls", [])
            calls.append({"id": block.id, "type": "function", "function": function})
            self._later()
        elif isinstance(block, ToolResult):
            name = self._names.get(block.tool_use_id, "")
            self._say("tool", block.text, tool_call_id=block.tool_use_id, name=name)
        elif isinstance(block, Thinking):
            message = self._assistant()
            message["reasoning_content"] = message.get("reasoning_content", "") + self._ended(block.thinking)
        elif isinstance(block, RedactedThinking):
            self.ends.append(self._part())
        elif isinstance(block, Compaction):
            if block.content is None:
                self.ends.append(self._part())
            else:
                self._say("user", SUMMARY + block.content)
        elif role == "assistant" and "tool_calls" in self._assistant():
            # The template writes calls behind the text, wherever they stood.
            message = self._assistant()
            message["content"] += self._ended(block.text)
        else:
            self._say(role, block.text)

    def _begun(self, message: Message) -> str:
        """The beginning of the answer: its texts alone."""
        return "".join(self._ended(block.text if isinstance(block, Text) else "") for block in message.content)


def _start(messages: Sequence[Message]) -> int:
    """The message from which on the conversation is sent: that with the last compaction, or the first."""
    return max((n for n, message in enumerate(messages) if any(map(_compacts, message.content))), default=0)


def _start_in(blocks: Sequence[Block]) -> int:
    """The block from which on a message is sent."""
    return max((n for n, block in enumerate(blocks) if _compacts(block)), default=0)


def _compacts(block: Block) -> bool:
    return isinstance(block, Compaction) and block.content is not None
