"""Claude Code's session logs, as sessions: the conversation itself, its sub-agents, and ways that were abandoned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from longturn.conversation.edits.slide import Slide
from longturn.conversation.history import Whole
from longturn.conversation.importing.building import Building, Keep, file_of
from longturn.conversation.importing.claude_log import LogEntry, chain_name, decode_line, is_result
from longturn.conversation.importing.files import malformed, numbered
from longturn.conversation.parts import File, Part, Reasoning, Text, ToolCall, ToolResult, Unknown
from longturn.dialects.anthropic_usage import use
from longturn.errors import LedgerError
from longturn.ledger import RequestLine

COMPACTED = "compacted by Claude Code"
RESOURCES = ("file_path", "notebook_path", "url")
"""Arguments of tools that name what is read."""


@dataclass
class _Chain:
    """One conversation. places: entries of ours after each of the log's, by uuid; calls: numbers of answers, by id."""

    session: str
    side: bool
    building: Building = field(default_factory=Building)
    places: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    lines: dict[str, tuple[int, RequestLine]] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    created: float = 0.0
    answered: int = 0
    cut: bool = False  # a compaction whose summary has not come yet


def read(path: Path, data: bytes, keep: Keep, skip_bad: bool) -> list[Whole]:
    """The sessions of a log. Raises ImportFailed for a malformed line, unless such are to be skipped."""
    chains: dict[str, _Chain] = {}
    roots: dict[str, str] = {}
    for number, line in numbered(data):
        try:
            entry = decode_line(line)
        except (ValueError, RecursionError) as error:
            if skip_bad:
                continue
            raise malformed(path, f"line {number}", error) from None
        if entry is not None:
            name = chain_name(entry, roots)
            chain = chains.setdefault(name, _Chain(entry.session_id or "session", entry.is_sidechain))
            _follow(chain, entry, keep)
    return [_whole(chain) for chain in sorted(chains.values(), key=lambda chain: chain.side) if chain.building.log]


def _follow(chain: _Chain, entry: LogEntry, keep: Keep) -> None:
    if entry.subtype == "compact_boundary":
        chain.cut = True
        chain.places.clear()
        chain.answers.clear()
        chain.answered = 0
    if entry.type == "system" or entry.message is None or entry.timestamp is None:
        return
    time = entry.timestamp.timestamp()
    chain.created = chain.created or time
    if entry.type == "assistant":
        _answer(chain, entry, time)
    else:
        _say(chain, entry, time, keep)
    if entry.uuid:
        chain.places[entry.uuid] = len(chain.building.log)


def _answer(chain: _Chain, entry: LogEntry, time: float) -> None:
    """An answer or a part of one; those with one id are one message, whatever came in between."""
    message, building = entry.message, chain.building
    assert message is not None
    if entry.is_api_error_message:
        building.say(entry.uuid, "assistant", [Unknown({"type": "api_error", "content": message.content})], time)
        return
    chain.model = message.model or chain.model
    parts = [_answered(chain, block) for block in _blocks(message.content)]
    key = message.id or entry.request_id or entry.uuid
    seq = chain.answers.get(key)
    if seq is None:
        before = len(building.log)
        seq = building.say(key, "assistant", parts, time, message.model)
        if seq < before:
            return
        chain.answers[key] = seq
        _cut(chain, seq)
    else:
        building.say_more(seq, parts)
    chain.answered = len(building.log)
    if message.usage is not None:
        try:
            used = use(msgspec.to_builtins(message.usage))
        except LedgerError:
            return
        finish = message.stop_reason
        chain.lines[key] = seq, RequestLine(key, None, message.model or "unknown", time, used, finish_reason=finish)


def _say(chain: _Chain, entry: LogEntry, time: float, keep: Keep) -> None:
    """What is no answer: of the user, or of tools."""
    message, building = entry.message, chain.building
    assert message is not None
    before = chain.places.get(entry.parent_uuid or "")
    if before is not None and before < chain.answered and not is_result(message.content):
        _keep_lines(chain)
        building.go_back(before)
        chain.answered = 0
        chain.answers = {key: seq for key, seq in chain.answers.items() if seq < before}
        chain.places = {uuid: place for uuid, place in chain.places.items() if place <= before}
    blocks = _blocks(message.content)
    if chain.cut and entry.is_compact_summary:
        text = "\n".join(_as_text(block.get("text", "")) for block in blocks)
        if building.compact(text, COMPACTED):
            chain.cut = False
            return
    results = [block for block in blocks if block.get("type") == "tool_result"]
    others = [block for block in blocks if block.get("type") != "tool_result"]
    inner = [block for result in results for block in _blocks(result.get("content"))]
    media = [block for block in inner if block.get("type") != "text"]
    building.say(entry.uuid, "tool", [_result(chain, block) for block in results], time)
    synthetic = entry.is_meta or entry.is_compact_summary
    said = [_said(block, synthetic, keep) for block in (*media, *others)]
    seq = building.say(f"{entry.uuid}/said" if results else entry.uuid, "user", said, time)
    _cut(chain, seq)


def _cut(chain: _Chain, seq: int) -> None:
    """Where a compaction left no summary, what is before message `seq` is just not sent any more."""
    if chain.cut and seq >= 0:
        chain.cut = not chain.building.edit([Slide(seq)], COMPACTED)


def _blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a message or of a result; what is none is taken for text."""
    blocks = content if isinstance(content, list) else [content or ""]
    return [block if isinstance(block, dict) else {"type": "text", "text": _as_text(block)} for block in blocks]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _answered(chain: _Chain, block: dict[str, Any]) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "thinking", "thinking": str(text)}:
            return Reasoning(text, {"anthropic": block})
        case {"type": "redacted_thinking"}:
            return Reasoning("", {"anthropic": block})
        case {"type": "tool_use", "id": str(call), "name": str(name)}:
            given = block.get("input")
            if isinstance(given, dict) and (read := next(filter(None, map(given.get, RESOURCES)), None)):
                chain.resources[call] = str(read)
            return ToolCall(call, name, msgspec.json.encode(given).decode())
    return Unknown(block)


def _result(chain: _Chain, block: dict[str, Any]) -> Part:
    call, inner = str(block.get("tool_use_id", "")), _blocks(block.get("content"))
    text = "\n".join(_as_text(part.get("text", "")) for part in inner if part.get("type") == "text")
    return ToolResult(call, text, chain.resources.get(call), error=block.get("is_error") is True)


def _said(block: dict[str, Any], synthetic: bool, keep: Keep) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text, synthetic)
        case {"type": str(kind), "source": {"type": "base64", "media_type": str(media), "data": str(data)}}:
            file: File | None = file_of(kind, media, data, keep)
            return file or Unknown(block)
    return Unknown(block)


def _keep_lines(chain: _Chain) -> None:
    for seq, line in chain.lines.values():
        chain.building.asked(line, seq)
    chain.lines.clear()


def _whole(chain: _Chain) -> Whole:
    _keep_lines(chain)
    building = chain.building
    title = building.first_words()
    return Whole(
        f"{title} (sub-agent)" if chain.side else title,
        building.log,
        building.requests,
        model=chain.model,
        created=chain.created,
        id=None if chain.side else chain.session,
        branches=building.branches,
    )
