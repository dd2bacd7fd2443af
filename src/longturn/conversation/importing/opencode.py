"""opencode's exports, as sessions: each step of an answer is a message, and so are the results of its tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from longturn.conversation.edits.prune import Prune
from longturn.conversation.history import Whole
from longturn.conversation.importing.building import Building, Keep, file_of
from longturn.conversation.importing.files import malformed
from longturn.conversation.importing.opencode_export import (
    INTERRUPTED,
    SUMMARY_REQUEST,
    Export,
    ExportedMessage,
    ExportedPart,
    State,
    Tokens,
)
from longturn.conversation.item import Place
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall, ToolResult, Unknown
from longturn.ledger import RequestLine, TokenUse

MARKERS = ("step-start", "step-finish")
"""Parts that only say where a request begins and ends."""
RESOURCES = ("filePath", "url")
"""Arguments of tools that name what is read."""

_EXPORT = msgspec.json.Decoder(Export)


class _RawMessage(msgspec.Struct):
    parts: list[dict[str, Any]]


class _RawExport(msgspec.Struct):
    messages: list[_RawMessage]


_RAW = msgspec.json.Decoder(_RawExport)


def read(path: Path, data: bytes, keep: Keep) -> Whole:
    """The session of an export. Raises ImportFailed for what is none."""
    try:
        export, raw = _EXPORT.decode(data), _RAW.decode(data)
    except (ValueError, RecursionError) as error:
        raise malformed(path, "line 1", error) from None
    return _Reading(export, [message.parts for message in raw.messages], keep).whole()


class _Reading:
    """One way through an export."""

    def __init__(self, export: Export, raw: list[list[dict[str, Any]]], keep: Keep) -> None:
        self._export, self._raw, self._keep = export, raw, keep
        self._building = Building()
        self._first: dict[str, int] = {}  # of messages, by id: the number of the first entry that they became
        self._asked: dict[str, ExportedPart] = {}  # parts that ask for a summary, by id of their message
        self._pruned: list[tuple[float, Place]] = []
        self._model: str | None = None

    def whole(self) -> Whole:
        export, building = self._export, self._building
        for message, raw in zip(export.messages, self._raw, strict=True):
            self._prune(message.info.time.created)
            self._first[message.info.id] = len(building.log)
            if message.info.role == "assistant":
                self._answer(message, raw)
            else:
                self._say(message, raw)
        self._prune(float("inf"))
        return Whole(
            export.info.title or building.first_words(),
            building.log,
            building.requests,
            model=self._model,
            created=export.info.time.created / 1000,
            id=export.info.id,
        )

    def _say(self, message: ExportedMessage, raw: list[dict[str, Any]]) -> None:
        if (part := message.compaction) is not None:
            self._asked[message.info.id] = part
        parts = [self._said(part, whole) for part, whole in zip(message.parts, raw, strict=True)]
        self._building.say(message.info.id, "user", parts, message.info.time.created / 1000)

    def _answer(self, message: ExportedMessage, raw: list[dict[str, Any]]) -> None:
        info, building = message.info, self._building
        time = info.time.created / 1000
        if message.is_finished_summary and info.parent in self._asked:
            self._summary(message)
            return
        others = [part for part in raw if part.get("type") not in (*MARKERS, "text", "reasoning", "tool")]
        if not message.is_sent or message.is_summary:
            failed = {"error": info.error, "parts": [part for part in raw if part.get("type") not in MARKERS]}
            building.say(info.id, "assistant", [Unknown(failed)], time, info.model)
            return
        for number, (said, tokens) in enumerate(message.steps(), start=1):
            self._model = info.model or self._model
            id = info.id if number == 1 else f"{info.id}/{number}"
            parts = [*(part for each in said for part in self._answered(each)), *(map(Unknown, others))]
            others = []
            if not parts:
                continue
            building.say(id, "assistant", parts, time, info.model)
            building.asked(_line(id, info.model, time, tokens, info.finish))
            results = [part for part in said if part.state is not None]
            place = len(building.log)
            building.say(f"{id}/results", "tool", [_result(part) for part in results], time)
            for part_number, part in enumerate(results):
                if part.state is not None and part.state.time.compacted is not None:
                    self._pruned.append((part.state.time.compacted, (place, part_number)))
            files = [file for part in results if part.state for file in self._attached(part.state)]
            building.say(f"{id}/files", "user", files, time)
        building.say(f"{info.id}/more", "assistant", list(map(Unknown, others)), time)

    def _summary(self, message: ExportedMessage) -> None:
        """A finished summary takes the place of what is before its tail."""
        info, building = message.info, self._building
        text = "".join(part.text for part in message.parts if part.type == "text")
        tail = self._asked[str(info.parent)].tail_start_id
        until = self._first.get(tail or "", self._first[str(info.parent)])
        if building.compact(text, "compacted by opencode", until, SUMMARY_REQUEST):
            tokens = next((tokens for _, tokens in message.steps()), info.tokens)
            building.asked(_line(info.id, info.model, info.time.created / 1000, tokens, info.finish, "summary"))
        else:
            building.say(info.id, "assistant", [Text(text)], info.time.created / 1000, info.model)

    def _prune(self, now: float) -> None:
        """Clear the results that had been cleared by `now` and are still sent."""
        due = [place for time, place in self._pruned if time <= now]
        self._pruned = [(time, place) for time, place in self._pruned if time > now]
        if due and (still := [place for place in due if place in self._building.view.places]):
            self._building.edit([Prune(tuple(still))], "pruned by opencode")

    def _said(self, part: ExportedPart, raw: dict[str, Any]) -> Part:
        if part.type == "text" and not part.ignored:
            return Text(part.text, part.synthetic)
        if part.type == "file" and part.mime not in ("text/plain", "application/x-directory"):
            return self._file(raw)
        return Unknown(raw)

    def _file(self, raw: dict[str, Any]) -> Part:
        head, _, data = str(raw.get("url", "")).partition(";base64,")
        name = str(raw.get("filename") or raw.get("id") or "file")
        file = file_of(name, str(raw.get("mime", "")), data, self._keep) if head.startswith("data:") else None
        return file or Unknown(raw)

    def _attached(self, state: State) -> Iterator[Part]:
        return map(self._file, state.attachments)

    def _answered(self, part: ExportedPart) -> Iterator[Part]:
        if part.type == "text" and part.text and not part.ignored:
            yield Text(part.text, part.synthetic)
        elif part.type == "reasoning":
            yield Reasoning(part.text)
        elif part.type == "tool" and part.state is not None:
            yield ToolCall(_call(part), part.tool, msgspec.json.encode(part.state.input).decode())


def _call(part: ExportedPart) -> str:
    return part.call or part.id


def _result(part: ExportedPart) -> ToolResult:
    state = part.state
    assert state is not None
    given = state.input if isinstance(state.input, dict) else {}
    resource = next((str(given[name]) for name in RESOURCES if given.get(name)), None)
    text = {"completed": state.output, "error": state.error}.get(state.status, INTERRUPTED)
    return ToolResult(_call(part), text, resource, error=state.status != "completed")


def _line(
    id: str, model: str | None, time: float, tokens: Tokens, finish: str | None, purpose: str = "turn"
) -> RequestLine:
    used = TokenUse(
        logical=tokens.prompt,
        cached={"provider": tokens.cache.read},
        computed=tokens.input + tokens.cache.write,
        output=tokens.output + tokens.reasoning,
        reasoning=tokens.reasoning,
        written=tokens.cache.write,
    )
    return RequestLine(id, None, model or "unknown", time, used, finish_reason=finish, purpose=purpose)
