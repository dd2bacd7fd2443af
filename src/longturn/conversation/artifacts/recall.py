"""Back into the history: what was said and is not sent any more, found by words or read by its number."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from longturn.conversation.artifacts.lines import excerpt, portion
from longturn.conversation.artifacts.rank import best, words_of
from longturn.conversation.entries import Entry, Said
from longturn.conversation.parts import File, Message, Part, Reasoning, Summary, Text, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class Passage:
    """One part of the history as text. at: its message and part; what: for people and models."""

    at: tuple[int, int]
    what: str
    text: str


def passages(entries: Sequence[Entry], shown: Container[tuple[int, int]] = ()) -> list[Passage]:
    """All parts with text, oldest first, but those in `shown`: message and part of what is sent whole anyway."""
    found: list[Passage] = []
    calls: dict[str, ToolCall] = {}
    for entry in entries:
        if isinstance(entry, Said):
            calls |= {part.call: part for part in entry.message.parts if isinstance(part, ToolCall)}
            found += (passage for passage in _parts(entry.seq, entry.message, calls) if passage.at not in shown)
    return found


def find_passages(found: Sequence[Passage], query: str, limit: int) -> str:
    """The passages that fit the words of `query` best, each as an excerpt, with the message to read on in."""
    words = words_of(query)
    if not words:
        return "[give some words to look for]"
    hits = [found[index] for index in best([passage.text for passage in found], query, limit)]
    if not hits:
        return f"[nothing of {len(found):,} earlier parts holds a word of {query!r}]"
    return "\n\n".join(
        f"message {hit.at[0]} ({hit.what}): {excerpt(hit.text, _densest(hit.text.casefold(), words))}" for hit in hits
    )


def read_message(entries: Sequence[Entry], seq: int, first: int, count: int, character: int = 0) -> str:
    """Message `seq` of the history whole, in portions of lines."""
    parts = [passage for passage in passages(entries) if passage.at[0] == seq]
    if not parts:
        return f"[there is no message {seq} with text]"
    return portion("\n".join(f"[{part.what}]\n{part.text}" for part in parts), first, count, character)


def _parts(seq: int, message: Message, calls: dict[str, ToolCall]) -> Iterator[Passage]:
    for number, part in enumerate(message.parts):
        what, text = _describe(part, message.role, calls)
        if text:
            yield Passage((seq, number), what, text)


def _describe(part: Part, role: str, calls: dict[str, ToolCall]) -> tuple[str, str]:
    match part:
        case Text(text=text):
            return role, text
        case Reasoning(text=text):
            return f"{role}'s reasoning", text
        case ToolCall(tool=tool, arguments=arguments):
            return f"call of {tool}", arguments
        case ToolResult(call=call, text=text, resource=resource):
            made = calls.get(call)
            about = resource or (made.arguments[:80] if made else call)
            return f"result of {made.tool if made else 'a tool'}, {about}", text
        case File(name=name, media_type=media_type):
            return f"file, {media_type}", name
        case Summary(text=text, first=first, last=last):
            return f"summary of messages {first} to {last}", text
        case _:
            return "", ""


def _densest(lowered: str, words: Sequence[str]) -> int:
    """Where the excerpt begins: at the place of a word that has most other words close behind it."""
    places = [place for word in words for place in _occurrences(lowered, word)]
    return max(places, key=lambda place: (sum(word in lowered[place : place + 300] for word in words), -place))


def _occurrences(lowered: str, word: str) -> Iterator[int]:
    place, count = lowered.find(word), 0
    while place >= 0 and count < 50:
        yield place
        place, count = lowered.find(word, place + len(word)), count + 1
