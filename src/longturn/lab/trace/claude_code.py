"""Session logs of Claude Code: one JSON object per entry, in the order in which they were written.

The format is not documented by its maker; this follows the logs themselves. What matters here: several assistant
entries with one message id are one call; `compact_boundary` starts the context anew from the summary that follows; side
chains are sub-agents with a context of their own; a user message whose parent is an older entry goes back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import Blocks, TraceRequest
from longturn.lab.trace.heads import head_note
from longturn.lab.trace.text import IMAGE_TOKENS, TEXT_NOTE, Texts, Tokenize, opaque
from longturn.lab.trace.transcript import Call, Transcript, finished

OPEN_CHAINS = 1000
"""Conversations of one file whose histories are kept; the one that was silent longest goes first."""

Count = Annotated[int, Meta(ge=0)]


class Usage(msgspec.Struct):
    """Token counts as Anthropic reports them: the three of the prompt exclude each other."""

    input_tokens: Count = 0
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    output_tokens: Count = 0

    @property
    def prompt(self) -> int:
        """The whole prompt."""
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)


class _Message(msgspec.Struct):
    content: str | list[str | dict[str, Any]]
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None


class _Kind(msgspec.Struct):
    type: str


class _Entry(msgspec.Struct, rename="camel"):
    """An entry that has to do with what the model sees."""

    type: Literal["user", "assistant", "system"]
    uuid: str = ""
    parent_uuid: str | None = None
    session_id: str = ""
    agent_id: str | None = None
    is_sidechain: bool = False
    is_api_error_message: bool = False
    timestamp: datetime | None = None
    subtype: str | None = None
    request_id: str | None = None
    message: _Message | None = None

    def __post_init__(self) -> None:
        if self.type != "system" and (self.message is None or self.timestamp is None):
            raise ValueError(f"an entry of type {self.type} has a `message` and a `timestamp`")


@dataclass
class _Chain:
    """One conversation of the file. `lengths`: the tokens of its history after each entry, by the entry's uuid."""

    transcript: Transcript
    lengths: dict[str, int] = field(default_factory=dict)
    answered: int = 0  # tokens of the history when the latest answer had been added


class ClaudeCode(FileTrace):
    """A Claude Code session log, or several one after the other. Order is that of the calls in the file."""

    def __init__(
        self,
        file: TraceFile,
        *,
        skip_bad: bool = False,
        shared_heads: bool = False,
        tokenize: Tokenize | None = None,
    ) -> None:
        notes = [*([] if tokenize else [TEXT_NOTE]), head_note(shared_heads), "Sub-agents are part of their session."]
        super().__init__(file, unit=1, notes=notes, skip_bad=skip_bad)
        self._texts = Texts(tokenize)
        self._shared_heads = shared_heads
        self._entry = msgspec.json.Decoder(_Entry).decode
        self._kind = msgspec.json.Decoder(_Kind).decode

    def __iter__(self) -> Iterator[TraceRequest]:
        calls: deque[Call] = deque()
        chains: dict[str, _Chain] = {}
        roots: dict[str, str] = {}  # of entries in side chains that have no agent id: the first entry of the chain
        start: float | None = None
        for number, entry in self.records(self._decode):
            if entry is None:
                continue
            if start is None and entry.timestamp is not None:
                start = entry.timestamp.timestamp()
            name = _chain_name(entry, roots)
            chain = chains.pop(name, None) or self._chain(entry, name, calls)
            chains[name] = chain  # the newest goes to the back
            if len(chains) > OPEN_CHAINS:
                chains.pop(next(iter(chains))).transcript.close()
            self._follow(chain, entry, start or 0.0, f"line {number}")
            yield from finished(calls)
        for chain in chains.values():
            chain.transcript.close()
        yield from finished(calls)

    def _decode(self, line: bytes) -> _Entry | None:
        """An entry, or None for one of the many kinds that the model never sees."""
        return self._entry(line) if self._kind(line).type in ("user", "assistant", "system") else None

    def _chain(self, entry: _Entry, name: str, calls: deque[Call]) -> _Chain:
        transcript = Transcript(
            entry.session_id or "session",
            calls,
            opening=self._texts.opening("assistant"),
            closing=self._texts.closing,
            name=name,
            head_kind="sub-agent" if entry.is_sidechain else "main",
            shared_head=self._shared_heads,
        )
        return _Chain(transcript)

    def _follow(self, chain: _Chain, entry: _Entry, start: float, where: str) -> None:
        transcript, message = chain.transcript, entry.message
        if entry.subtype == "compact_boundary":
            transcript.forget()
            chain.lengths.clear()
            chain.answered = 0
        if message is None or entry.timestamp is None or entry.type == "system" or entry.is_api_error_message:
            return
        time = entry.timestamp.timestamp() - start
        said = self._said(message.content)
        if entry.type == "assistant":
            usage = message.usage or Usage()
            transcript.answer(
                message.id or entry.request_id or entry.uuid,
                said,
                label=where,
                time=time,
                reported_prompt=usage.prompt,
                reported_output=usage.output_tokens,
            )
            chain.answered = len(transcript)
        else:
            before = chain.lengths.get(entry.parent_uuid or "")
            if before is not None and before < chain.answered and not _is_result(message.content):
                transcript.rewind(before)
                chain.answered = 0
            transcript.add(self._texts.message("user", said), time)
        if entry.uuid:
            chain.lengths[entry.uuid] = len(transcript)

    def _said(self, content: str | list[str | dict[str, Any]]) -> Blocks:
        parts = [content] if isinstance(content, str) else content
        return Blocks.join(*(self._part(part) for part in parts))

    def _part(self, part: str | dict[str, Any]) -> Blocks:
        if isinstance(part, str):
            return self._texts.blocks(part)
        kind = part.get("type")
        if kind in ("text", "thinking", "redacted_thinking"):
            return self._texts.blocks(str(part.get("text") or part.get("thinking") or part.get("data") or ""))
        if kind == "tool_use":
            arguments = msgspec.json.encode(part.get("input")).decode()
            return self._texts.blocks(f"\n{part.get('name')}{arguments}")
        if kind == "tool_result":
            content = part.get("content") or ""
            return self._said(content if isinstance(content, str | list) else str(content))
        return opaque(msgspec.json.encode(part).decode(), IMAGE_TOKENS)


def _is_result(content: str | list[str | dict[str, Any]]) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def _chain_name(entry: _Entry, roots: dict[str, str]) -> str:
    """The session, with the sub-agent if it is one's entry."""
    session = entry.session_id or "session"
    if not entry.is_sidechain:
        return session
    if entry.agent_id:
        return f"{session}/{entry.agent_id}"
    root = roots.get(entry.parent_uuid or "", entry.uuid)
    roots[entry.uuid] = root
    return f"{session}/{root}"
