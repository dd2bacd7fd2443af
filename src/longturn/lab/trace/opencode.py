"""Sessions as `opencode export` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from longturn.conversation.importing.opencode_export import (
    INTERRUPTED,
    SUMMARY_REQUEST,
    Export,
    ExportedMessage,
    ExportedPart,
    State,
    Tokens,
)
from longturn.lab.trace.files import FileTrace, TraceFile
from longturn.lab.trace.form import NO_BLOCKS, Blocks, TraceRequest
from longturn.lab.trace.heads import head, head_note
from longturn.lab.trace.text import IMAGE_TOKENS, TEXT_NOTE, Texts, Tokenize, opaque

CLEARED = "[Old tool result content cleared]"
REDACTED = b"[redacted:"


class OpenCode(FileTrace):
    """An opencode export: one session. The file is in memory while it is gone through."""

    def __init__(
        self,
        file: TraceFile,
        *,
        skip_bad: bool = False,
        shared_heads: bool = False,
        tokenize: Tokenize | None = None,
    ) -> None:
        notes = [
            *([] if tokenize else [TEXT_NOTE]),
            head_note(shared_heads),
            "Where texts are redacted, they are taken to be as long as the prompt lengths that were reported ask for.",
            "Requests for a title are in no export and left out.",
        ]
        super().__init__(file, unit=1, notes=notes, skip_bad=skip_bad)
        self._texts = Texts(tokenize)
        self._shared_heads = shared_heads

    def __iter__(self) -> Iterator[TraceRequest]:
        export = self.file.decoded(msgspec.json.Decoder(Export))
        yield from _Reading(export, self._texts, self._shared_heads).requests()


class _Reading:
    """One way through an export."""

    def __init__(self, export: Export, texts: Texts, shared_heads: bool) -> None:
        self._session, self._messages = export.info.id, export.messages
        self._texts, self._shared_heads = texts, shared_heads
        self._redacted = REDACTED in msgspec.json.encode(export)
        self._head: Blocks | None = None
        self._unseen: dict[str, Blocks] = {}  # what is missing of redacted messages, by the message that it follows

    def requests(self) -> Iterator[TraceRequest]:
        start = self._messages[0].info.time.created if self._messages else 0.0
        end: float | None = None
        n_requests = 0
        for place, message in enumerate(self._messages):
            if message.info.role != "assistant" or not message.is_sent:
                continue
            for step, (said, tokens) in enumerate(message.steps()):
                n_requests += 1
                now = message.info.time.created if step == 0 or end is None else end
                prompt = self._prompt(place, step, tokens, now)
                output = Blocks.join(*(self._said(part) for part in said), self._texts.closing)
                yield TraceRequest(
                    id=f"{self._session}/{n_requests}",
                    session=self._session,
                    time=max(0.0, now - start) / 1000,
                    prompt=prompt,
                    prompt_tokens=len(prompt),
                    output_tokens=max(len(output), tokens.output + tokens.reasoning),
                    output=output,
                    think=None if end is None else max(0.0, now - end) / 1000,
                    label=f"message {place + 1}",
                )
                end = _end(said) or message.info.time.completed or now

    def _prompt(self, place: int, step: int, tokens: Tokens, now: float) -> Blocks:
        message = self._messages[place]
        reported = tokens.prompt
        pieces = [(seen.info.id, self._rendered(seen, now)) for seen in view(self._messages[:place])]
        if message.is_summary:  # asked for in words of its own, with the history as one text: it shares nothing
            length = reported or sum(len(blocks) for _, blocks in pieces)
            return opaque(f"{message.info.id} {step}", max(1, length))
        if step:
            pieces.append((message.info.id, self._steps(message, now, step)))
        opening = self._texts.opening("assistant")
        known = [blocks for key, rendered in pieces for blocks in (rendered, self._unseen.get(key, NO_BLOCKS))]
        missing = reported - sum(map(len, known)) - len(opening) - len(self._head or NO_BLOCKS)
        if self._head is None:
            self._head = head(self._session, "main", missing, self._shared_heads)
        elif self._redacted and pieces:
            key = pieces[-1][0]
            known.append(opaque(f"{message.info.id} {step} unseen", missing))
            self._unseen[key] = Blocks.join(self._unseen.get(key, NO_BLOCKS), known[-1])
        return Blocks.join(self._head, *known, opening)

    def _rendered(self, message: ExportedMessage, now: float) -> Blocks:
        if message.info.role == "assistant":
            return self._steps(message, now)
        return self._texts.message(message.info.role, *(self._said(part) for part in message.parts))

    def _steps(self, message: ExportedMessage, now: float, most: int | None = None) -> Blocks:
        """What an answer and the results of its tools look like to calls at time `now`; only its first `most` steps."""
        blocks: list[Blocks] = []
        for said, _ in islice(message.steps(), most):
            blocks.append(self._texts.message("assistant", *(self._said(part) for part in said)))
            blocks += [self._result(part.state, now) for part in said if part.state is not None]
        return Blocks.join(*blocks)

    def _said(self, part: ExportedPart) -> Blocks:
        if part.type in ("text", "reasoning"):
            return NO_BLOCKS if part.ignored else self._texts.blocks(part.text)
        if part.type == "tool" and part.state is not None:
            return self._texts.blocks(f"\n{part.tool}{msgspec.json.encode(part.state.input).decode()}")
        if part.type == "compaction":
            return self._texts.blocks(SUMMARY_REQUEST)
        if part.type == "file" and part.mime not in ("text/plain", "application/x-directory"):
            return opaque(part.id, IMAGE_TOKENS)
        return NO_BLOCKS

    def _result(self, state: State, now: float) -> Blocks:
        pruned = state.time.compacted is not None and state.time.compacted <= now
        text = {"completed": CLEARED if pruned else state.output, "error": state.error}.get(state.status, INTERRUPTED)
        media = [] if pruned else [opaque(str(attached.get("id")), IMAGE_TOKENS) for attached in state.attachments]
        return self._texts.message("tool", self._texts.blocks(text), *media)


def view(messages: list[ExportedMessage]) -> list[ExportedMessage]:
    """The messages that the next call sees: all after the newest finished summary, before them its tail and itself."""
    done = {message.info.parent: place for place, message in enumerate(messages) if message.is_finished_summary}
    asked = [place for place, message in enumerate(messages) if message.compaction and message.info.id in done]
    if asked:
        ask, summary = asked[-1], done[messages[asked[-1]].info.id]
        part = messages[ask].compaction
        tail_id = part.tail_start_id if part else None
        tail = next((place for place in range(ask) if messages[place].info.id == tail_id), ask)
        messages = [messages[ask], *messages[ask + 1 : summary + 1], *messages[tail:ask], *messages[summary + 1 :]]
    return [message for message in messages if message.is_sent]


def _end(said: list[ExportedPart]) -> float | None:
    """When an answer was complete: its first tool began."""
    starts = [part.state.time.start for part in said if part.state is not None and part.state.time.start is not None]
    return min(starts, default=None)
