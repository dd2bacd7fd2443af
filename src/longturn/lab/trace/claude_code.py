"""Session logs of Claude Code: one JSON object per entry, in the order in which they were written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from longturn.conversation.importing.claude_log import Content, LogEntry, Usage, chain_name, decode_line, is_result
from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import Blocks, TraceRequest
from longturn.lab.trace.heads import head_note
from longturn.lab.trace.text import IMAGE_TOKENS, TEXT_NOTE, Texts, Tokenize, opaque
from longturn.lab.trace.transcript import Call, Transcript, finished

OPEN_CHAINS = 1000
"""Conversations of one file whose histories are kept; the one that was silent longest goes first."""


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

    def __iter__(self) -> Iterator[TraceRequest]:
        calls: deque[Call] = deque()
        chains: dict[str, _Chain] = {}
        roots: dict[str, str] = {}  # of entries in side chains that have no agent id: the first entry of the chain
        start: float | None = None
        for number, entry in self.records(decode_line):
            if entry is None:
                continue
            if start is None and entry.timestamp is not None:
                start = entry.timestamp.timestamp()
            name = chain_name(entry, roots)
            chain = chains.pop(name, None) or self._chain(entry, name, calls)
            chains[name] = chain  # the newest goes to the back
            if len(chains) > OPEN_CHAINS:
                chains.pop(next(iter(chains))).transcript.close()
            self._follow(chain, entry, start or 0.0, f"line {number}")
            yield from finished(calls)
        for chain in chains.values():
            chain.transcript.close()
        yield from finished(calls)

    def _chain(self, entry: LogEntry, name: str, calls: deque[Call]) -> _Chain:
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

    def _follow(self, chain: _Chain, entry: LogEntry, start: float, where: str) -> None:
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
            if before is not None and before < chain.answered and not is_result(message.content):
                transcript.rewind(before)
                chain.answered = 0
            transcript.add(self._texts.message("user", said), time)
        if entry.uuid:
            chain.lengths[entry.uuid] = len(transcript)

    def _said(self, content: Content) -> Blocks:
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
