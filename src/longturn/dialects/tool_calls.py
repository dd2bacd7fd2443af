"""Finds tool calls in a model's answer while it streams.

Two forms: Hermes and Qwen write `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several, between text.
Llama 3 writes `{"name": ..., "parameters": {...}}` as the whole answer, several separated by `;`, perhaps after
`<|python_tag|>`. What looks like a call but cannot be read is given back as text: nothing is lost but white space after
the last call. The result does not depend on how the answer was cut into pushes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
# What a bare call begins with, white space aside. Any other beginning is text, and streams.
BARE_STARTS = ('{"name":', '{"type":', '{"parameters":', '{"arguments":')
BARE_HEAD = 64
SPACE = " \t\r\n"


@dataclass(frozen=True)
class ToolCall:
    """One call. `arguments` is a JSON object as a string, `raw` the text it was read from with the space around it."""

    id: str
    name: str
    arguments: str
    raw: str


def new_call_id() -> str:
    """A fresh id in OpenAI's style."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Splits one answer into text and tool calls, in order. Use it only for requests that have tools."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._buffer = ""
        self._bare: bool | None = None  # whether the whole answer looks like bare calls; None while that is open
        self._after_call = False

    def push(self, text: str) -> list[str | ToolCall]:
        """Take more of the answer; return what is certain by now. Mutates this parser."""
        self._buffer += text
        return list(self._scan(final=False))

    def finish(self) -> list[str | ToolCall]:
        """Return the rest: what was held back is now known to be text, or a bare call."""
        return list(self._scan(final=True))

    def _scan(self, *, final: bool) -> Iterator[str | ToolCall]:
        if self._bare is None:
            self._bare = _looks_bare(self._buffer)
        if self._bare is not False:
            if not final:
                return
            yield from self._bare_calls()
            self._bare = False
        while (at := self._buffer.find(OPEN)) >= 0:
            yield from self._text(len(self._buffer[:at].rstrip()))
            begin = self._buffer.index(OPEN) + len(OPEN)
            try:
                found = _read_tagged(self._buffer, begin)
            except ValueError:
                found = None
            else:
                if found is None and not final:
                    return
            if found is None:
                yield from self._text(begin)
            else:
                name, arguments, end = found
                yield self._call(name, arguments, end)
        if final and self._after_call and not self._buffer.strip():
            self._buffer = ""
        yield from self._text(len(self._buffer) if final else _certain(self._buffer))

    def _bare_calls(self) -> list[ToolCall]:
        try:
            found = _read_bare(self._buffer)
        except ValueError:
            return []
        start = 0
        calls = []
        for name, arguments, end in found:
            calls.append(self._call(name, arguments, end - start))
            start = end
        return calls

    def _text(self, length: int) -> Iterator[str]:
        if length:
            text, self._buffer = self._buffer[:length], self._buffer[length:]
            self._after_call = False
            yield text

    def _call(self, name: str, arguments: str, length: int) -> ToolCall:
        raw, self._buffer = self._buffer[:length], self._buffer[length:]
        self._after_call = True
        return ToolCall(self._new_id(), name, arguments, raw)


def _looks_bare(text: str) -> bool | None:
    """Whether an answer that begins like this may be bare calls; None while it is too short to tell."""
    head = text.lstrip()
    if PYTHON_TAG.startswith(head):
        return None
    compact = "".join(head.removeprefix(PYTHON_TAG).lstrip()[:BARE_HEAD].split())
    if compact.startswith(BARE_STARTS):
        return True
    open_still = len(head) < BARE_HEAD and any(start.startswith(compact) for start in BARE_STARTS)
    return None if open_still else False


def _certain(text: str) -> int:
    """How much of `text` cannot belong to a call: all but an opening tag's beginning and the space before it."""
    partial = next((n for n in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:n])), 0)
    return len(text[: len(text) - partial].rstrip())


def _read_tagged(text: str, begin: int) -> tuple[str, str, int] | None:
    """Name, arguments and end of the call whose opening tag ends at `begin`; None if more text may complete it.

    Raises ValueError if no further text can make it a call.
    """
    if text.find(CLOSE, begin) < 0:
        return None
    try:
        value, end = _read_json(text, begin)
    except json.JSONDecodeError as error:
        # The closing tag so far is inside a string (of a file's content, say), and that or an escape is unfinished.
        if error.msg.startswith("Unterminated string") or error.pos > len(text) - 6:
            return None
        raise
    name, arguments = _as_call(value)
    end = _skip(text, end, SPACE)
    if text.startswith(CLOSE, end):
        return name, arguments, end + len(CLOSE)
    if CLOSE.startswith(text[end:]):
        return None
    raise ValueError("no closing tag after the JSON")


def _read_bare(text: str) -> list[tuple[str, str, int]]:
    """Name, arguments and end of each call of an answer that holds nothing else. Raises ValueError otherwise."""
    calls = []
    end = len(text) - len(text.lstrip().removeprefix(PYTHON_TAG))
    while end < len(text):
        value, end = _read_json(text, end)
        end = _skip(text, end, SPACE + ";")
        calls.append((*_as_call(value), end))
    return calls


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Models write line breaks into strings as they are.
_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def _read_json(text: str, begin: int) -> tuple[object, int]:
    try:
        return _decoder.raw_decode(text, _skip(text, begin, SPACE))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _skip(text: str, at: int, chars: str) -> int:
    while at < len(text) and text[at] in chars:
        at += 1
    return at


def _as_call(value: object) -> tuple[str, str]:
    """Name and arguments (a JSON object as a string). Raises ValueError if it is no call."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments, _ = _read_json(arguments, 0)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("not a call")
    text = json.dumps(arguments, ensure_ascii=False)
    # Half a surrogate pair passes as JSON but cannot be sent.
    (name + text).encode()
    return name, text
