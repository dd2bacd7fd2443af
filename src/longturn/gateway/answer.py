"""`AnswerReader`: usage, model and ending of an answer, read along from a stream of events or a JSON body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from longturn.dialects import anthropic_usage
from longturn.dialects.segments.form import as_dict, as_list
from longturn.gateway.decoding import CannotDecode, decoder

MOST = 32 << 20
"""Bytes of one body or event that are kept to be read."""

_json = msgspec.json.Decoder()


@dataclass(slots=True)
class Answer:
    """What an answer says about itself.

    usage: the provider's usage object, None where there was none. finish: why it ended, in the provider's word.
    error: the type of error that it reports. garbled: events that are no JSON. ended: whether its last event came, or
    its body is whole. trouble: why it could not be read.
    """

    usage: Mapping[str, Any] | None = None
    model: str | None = None
    finish: str | None = None
    error: str | None = None
    garbled: int = 0
    ended: bool = False
    trouble: str | None = None


@dataclass(slots=True)
class AnswerReader:
    """Reads one answer. kind: its content type. Feed it, then `finish`; neither raises for anything that comes."""

    dialect: str
    kind: str
    encoding: str
    answer: Answer = field(default_factory=Answer)
    _decode: Callable[[bytes], bytes] | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _data: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self._decode = decoder(self.encoding)
        except CannotDecode as error:
            self.answer.trouble = str(error)

    def feed(self, data: bytes) -> None:
        """The next bytes of the body."""
        if self.answer.trouble or self._decode is None:
            return
        try:
            self._buffer += self._decode(data)
        except CannotDecode as error:
            self._give_up(str(error))
            return
        if self._streams:
            self._take_lines()
        if len(self._buffer) > MOST:
            self._give_up(f"more than {MOST >> 20} MiB without an end")

    def finish(self) -> Answer:
        """What was found, when no more comes."""
        if not self.answer.trouble:
            if self._streams:
                # Half an event: no blank line has ended it.
                if self._buffer.strip() or self._data:
                    self.answer.garbled += 1
                    self.answer.ended = False
            elif self._buffer.strip():
                self._take_body()
        return self.answer

    @property
    def _streams(self) -> bool:
        return self.kind.partition(";")[0].strip().lower() == "text/event-stream"

    def _give_up(self, why: str) -> None:
        self.answer.trouble = why
        self._buffer.clear()
        self._data.clear()

    def _take_lines(self) -> None:
        *lines, rest = self._buffer.split(b"\n")
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(bytes(line[5:]))
            elif not line and self._data:
                self._take_event(b"\n".join(self._data).strip())
                self._data.clear()
        self._buffer = bytearray(rest)

    def _take_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.answer.ended = True
            return
        try:
            event = _json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            self.answer.garbled += 1
            return
        self._take(as_dict(event))

    def _take_body(self) -> None:
        try:
            body = _json.decode(bytes(self._buffer))
        except (msgspec.DecodeError, RecursionError):
            self.answer.garbled += 1
            return
        # Gemini streams a list where no events were asked for.
        for part in as_list(body):
            self._take(as_dict(part))
        self.answer.ended = True

    def _take(self, part: dict[str, Any]) -> None:
        answer = self.answer
        for found in _said(self.dialect, part):
            answer.model = found.get("model") or answer.model
            answer.finish = found.get("finish") or answer.finish
            answer.ended = answer.ended or bool(found.get("ended"))
            if usage := as_dict(found.get("usage")):
                answer.usage = anthropic_usage.joined(answer.usage or {}, usage)
        if error := part.get("error"):
            kind = as_dict(error)
            answer.error = str(kind.get("type") or kind.get("status") or kind.get("code") or "error")
            answer.ended = True


def _said(dialect: str, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What an event or body says: usage, model, finish, and whether it is the last."""
    kind = part.get("type")
    if dialect == "anthropic":
        if kind == "message_start":
            message = as_dict(part.get("message"))
            yield {"usage": message.get("usage"), "model": message.get("model")}
        elif kind == "message_delta":
            yield {"usage": part.get("usage"), "finish": as_dict(part.get("delta")).get("stop_reason")}
        elif kind == "message":
            yield {"usage": part.get("usage"), "model": part.get("model"), "finish": part.get("stop_reason")}
        yield {"ended": kind == "message_stop"}
    elif dialect == "openai":
        given = as_dict(part.get("response")) or (part if part.get("object") == "response" else {})
        ended = given.get("status") in ("completed", "incomplete", "failed", "cancelled")
        reason = as_dict(given.get("incomplete_details")).get("reason")
        yield {
            "usage": given.get("usage"),
            "model": given.get("model"),
            "finish": (reason or given.get("status")) if ended else None,
            "ended": ended,
        }
    elif dialect == "gemini":
        finish = next((as_dict(c).get("finishReason") for c in as_list(part.get("candidates"))), None)
        yield {
            "usage": part.get("usageMetadata"),
            "model": part.get("modelVersion"),
            "finish": finish,
            "ended": finish is not None,
        }
    else:
        finish = next((as_dict(c).get("finish_reason") for c in as_list(part.get("choices"))), None)
        yield {
            "usage": part.get("usage"),
            "model": part.get("model"),
            "finish": finish,
            "ended": finish is not None,
        }
