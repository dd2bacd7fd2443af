"""Chat logs in OpenAI's form: one JSON object a line, a request with its messages or a whole conversation.

Besides `messages` a line may have `tools`, `response` (a chat completion) or its `choices` and `usage`, `id`, `session`
and a time: `t` in seconds, or `timestamp` or `created` as seconds of the Unix clock or in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.following import FollowUps
from longturn.lab.trace.form import Blocks, TraceRequest
from longturn.lab.trace.messages import Message, said, whole
from longturn.lab.trace.taubench import conversation
from longturn.lab.trace.text import TEXT_NOTE, Texts, Tokenize

Count = Annotated[int, Meta(ge=0)]
Clock = Annotated[float, Meta(ge=0)] | datetime


class _Usage(msgspec.Struct):
    completion_tokens: Count = 0


class _Choice(msgspec.Struct):
    message: Message


class _Response(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    created: Clock | None = None


NO_TOOLS = msgspec.Raw(b"null")


class _Line(msgspec.Struct):
    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: msgspec.Raw = NO_TOOLS
    id: int | str | None = None
    session: int | str | None = None
    t: Annotated[float, Meta(ge=0)] | None = None
    timestamp: Clock | None = None
    created: Clock | None = None
    response: _Response | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None

    def answer(self) -> Message | None:
        """The answer, where the line has it."""
        choices = self.choices or (self.response.choices if self.response else [])
        return choices[0].message if choices else None

    def answer_tokens(self) -> int:
        """Tokens of the answer as reported; 0 where that is not known."""
        usage = self.usage or (self.response.usage if self.response else None)
        return usage.completion_tokens if usage else 0

    def time(self) -> float:
        """Seconds of whatever clock; 0 where the line tells none."""
        clocks = (self.t, self.timestamp, self.created, self.response.created if self.response else None)
        clock = next((clock for clock in clocks if clock is not None), 0.0)
        return clock.timestamp() if isinstance(clock, datetime) else clock


class ChatLog(FileTrace):
    """A chat log. Order is that of the file, times count from the first line's.

    A line whose messages end with the assistant, and that has no response, is a whole conversation: a request at every
    assistant message. All other lines are one request each.
    """

    def __init__(self, file: TraceFile, *, skip_bad: bool = False, tokenize: Tokenize | None = None) -> None:
        notes = [
            *([] if tokenize else [TEXT_NOTE]),
            "Where a line names no session, one that begins with all messages of an earlier line goes on from it.",
        ]
        super().__init__(file, unit=1, notes=notes, skip_bad=skip_bad)
        self._texts = Texts(tokenize)
        self._decode = msgspec.json.Decoder(_Line).decode

    def __iter__(self) -> Iterator[TraceRequest]:
        start: float | None = None
        follow_ups = FollowUps()
        for number, line in self.records(self._decode):
            start = line.time() if start is None else start
            time = max(0.0, line.time() - start)
            if line.messages[-1].role == "assistant" and line.answer() is None:
                name = str(next(name for name in (line.session, line.id, number) if name is not None))
                for request in conversation(name, line.messages, self._texts, f"line {number}", time):
                    yield from follow_ups.hold(request, None)
            else:
                yield from self._request(line, number, time, follow_ups)
        yield from follow_ups.rest()

    def _request(self, line: _Line, number: int, time: float, follow_ups: FollowUps) -> Iterator[TraceRequest]:
        """One request, and what it shows of the answer to the one that it goes on from."""
        keys = _keys(line)
        before = follow_ups.before(keys)
        if before and before.depth < len(keys) and line.messages[before.depth].role == "assistant":
            answer = self._answer(line.messages[before.depth])
            follow_ups.change(before, lambda request: _answered(request, answer))
        names = (line.session, before.session if before else None, line.id, number)
        prompt = self._prompt(line)
        answered = line.answer()
        output = self._answer(answered) if answered else None
        request = TraceRequest(
            id=str(number if line.id is None else line.id),
            session=str(next(name for name in names if name is not None)),
            time=time,
            prompt=prompt,
            prompt_tokens=len(prompt),
            output_tokens=len(output) if output is not None else line.answer_tokens(),
            output=output,
            label=f"line {number}",
        )
        yield from follow_ups.hold(request, keys[-1])

    def _prompt(self, line: _Line) -> Blocks:
        tools = bytes(line.tools).decode()
        head = [] if tools == "null" else [self._texts.message("tools", self._texts.blocks(tools))]
        messages = [whole(message, self._texts) for message in line.messages]
        return Blocks.join(*head, *messages, self._texts.opening("assistant"))

    def _answer(self, message: Message) -> Blocks:
        return Blocks.join(said(message, self._texts), self._texts.closing)


def _answered(request: TraceRequest, answer: Blocks) -> TraceRequest:
    if request.output is not None:
        return request
    return replace(request, output=answer, output_tokens=max(request.output_tokens, len(answer)))


def _keys(line: _Line) -> list[int]:
    """One key per message, for all messages up to it."""
    keys: list[int] = []
    key = xxhash.xxh3_64_intdigest(bytes(line.tools))
    for message in line.messages:
        key = xxhash.xxh3_64_intdigest(msgspec.json.encode(message), seed=key)
        keys.append(key)
    return keys
