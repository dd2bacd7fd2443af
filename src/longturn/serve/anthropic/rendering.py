"""From the engine's outputs to one answer of Anthropic's Messages, whole or as the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longturn.dialects import anthropic
from longturn.dialects.anthropic import Cached, MessagesRequest
from longturn.dialects.tool_calls import ToolCall, ToolCallParser
from longturn.engine import Output
from longturn.ledger import RequestLine
from longturn.serve.anthropic.compaction import Compacted
from longturn.serve.caching.anthropic import CachedPrompt
from longturn.serve.wires import ANTHROPIC

Json = dict[str, Any]


class MessagesRendering:
    """Renders the answer to one request.

    n_prompt: its tokens; cached: told when the answer begins; cut: whether the context leaves less than was asked;
    compacted: what the conversation was compacted to before; started, ended: further fields of the answer, those that
    are known when it begins and those that are said at its end.
    """

    wire = ANTHROPIC

    def __init__(
        self,
        request: MessagesRequest,
        n_prompt: int,
        cached: CachedPrompt,
        *,
        cut: bool = False,
        compacted: Compacted | None = None,
        ended: Json,
    ) -> None:
        self.id = anthropic.new_message_id()
        self._request = request
        self._n_prompt = n_prompt
        self._prompt = cached
        self._cut = cut
        self._parser = ToolCallParser(anthropic.new_call_id) if request.uses_tools else None
        self._content: list[Json] = []
        self._open = False
        """Whether the last block is a text that may still grow."""
        self._cached: Cached | None = None
        self._stop: tuple[str, str | None] = ("end_turn", None)
        self._compacted = compacted
        self.started: Json = {}
        self._ended = ended

    def push(self, index: int, output: Output) -> list[Json]:
        """See `Rendering`."""
        events = []
        if self._cached is None:
            self._cached = self._prompt.began(sum((output.cached or {}).values()))
            usage = anthropic.prompt_usage(self._n_prompt, self._cached)
            events.append(anthropic.message_start(self._message([], usage)))
            if self._compacted is not None:
                events += anthropic.compaction(0, self._compacted.summary)
                self._content.append(anthropic.compaction_block(self._compacted.summary))
        if self._request.max_tokens:
            for part in self._parts(output):
                events += self._text(part) if isinstance(part, str) else self._call(part)
        if output.finish_reason is not None:
            self._stop = self._stopped(output)
            events += self._closed()
        return events

    def whole(self, lines: Sequence[RequestLine]) -> Json:
        """See `Rendering`."""
        reason, sequence = self._stop
        more = {"stop_reason": reason, "stop_sequence": sequence, **self._ended}
        return self._message(self._content, self._usage(lines), **more)

    def end(self, lines: Sequence[RequestLine]) -> list[Json]:
        """See `Rendering`."""
        return [anthropic.message_delta(*self._stop, self._usage(lines), **self._ended), anthropic.message_stop()]

    def failed(self, error: Exception) -> list[Json]:
        """See `Rendering`."""
        return [anthropic.error_body(error)]

    def _message(self, content: Sequence[Json], usage: Json, **more: Any) -> Json:
        return anthropic.message(self.id, self._request.model, content, usage, **self.started, **more)

    def _usage(self, lines: Sequence[RequestLine]) -> Json:
        usage = anthropic.usage(lines[0], self._cached or Cached())
        if self._compacted is not None:
            usage["iterations"] = [self._compacted.usage, anthropic.iteration("message", usage)]
        return usage if self._request.max_tokens else {**usage, "output_tokens": 0}

    def _parts(self, output: Output) -> list[str | ToolCall]:
        """What `output` adds for certain, in order."""
        if self._parser is None:
            return [output.text] if output.text else []
        parts = self._parser.push(output.text)
        return parts if output.finish_reason is None else [*parts, *self._parser.finish()]

    def _text(self, text: str) -> list[Json]:
        events = []
        if not self._open:
            self._open = True
            events.append(anthropic.text_start(len(self._content)))
            self._content.append(anthropic.text_block(""))
        self._content[-1]["text"] += text
        return [*events, anthropic.text_delta(len(self._content) - 1, text)]

    def _call(self, call: ToolCall) -> list[Json]:
        if not self._request.several_calls and any(block["type"] == "tool_use" for block in self._content):
            return []
        events = self._closed()
        events += anthropic.tool_use(len(self._content), call)
        self._content.append(anthropic.tool_use_block(call))
        return events

    def _closed(self) -> list[Json]:
        was_open, self._open = self._open, False
        return [anthropic.block_stop(len(self._content) - 1)] if was_open else []

    def _stopped(self, output: Output) -> tuple[str, str | None]:
        """Why the answer ended, in Anthropic's words, and the stop sequence that ended it."""
        if output.finish_reason == "length" or not self._request.max_tokens:
            return "model_context_window_exceeded" if self._cut else "max_tokens", None
        if self._content and self._content[-1]["type"] == "tool_use":
            return "tool_use", None
        return ("stop_sequence", output.stop) if isinstance(output.stop, str) else ("end_turn", None)
