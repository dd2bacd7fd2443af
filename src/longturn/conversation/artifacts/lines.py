"""Texts shown to a model in portions: numbered lines, a bound on characters, and where to go on."""

from __future__ import annotations

from collections.abc import Iterator

from longturn.conversation.artifacts.rank import words_of

PORTION = 20_000
"""Characters that one answer of a tool may have: about 5,000 tokens."""
_EXCERPT = 400


def portion(text: str, first: int, count: int, character: int = 0) -> str:
    """Lines `first` (from 1) to `first + count - 1` of a text, each with its number, cut at `PORTION` characters.

    character: where to begin within the first line, for lines that are longer than one portion. The last line of what
    is returned says where to go on, or that the end is reached.
    """
    lines = text.splitlines() or [""]
    if first > len(lines):
        return f"[there are only {len(lines):,} lines]"
    shown: list[str] = []
    room, skip = PORTION, max(0, character)
    for number in range(first, min(first + count, len(lines) + 1)):
        line = lines[number - 1][skip:]
        if len(line) > room:
            if shown and len(line) <= PORTION:  # it fits in the next portion
                shown.append(f"[go on with line={number}]")
            else:
                shown += [f"{number}: {line[:room]}", f"[go on with line={number} character={skip + room}]"]
            return "\n".join(shown)
        shown.append(f"{number}: {line}")
        room, skip = room - len(line), 0
    after = first + count
    end = f"[go on with line={after}, {len(lines):,} lines in all]" if after <= len(lines) else "[end]"
    return "\n".join([*shown, end])


def matches(text: str, query: str) -> Iterator[tuple[int, str]]:
    """Number and excerpt of each line that holds the query as it stands, or else every word of it; case is ignored."""
    lines = text.splitlines()
    lowered = [line.casefold() for line in lines]
    whole, words = query.strip().casefold(), words_of(query)
    hits = [index for index, line in enumerate(lowered) if whole and whole in line]
    if not hits:
        whole = words[0] if words else ""
        hits = [index for index, line in enumerate(lowered) if words and all(word in line for word in words)]
    for index in hits:
        yield index + 1, excerpt(lines[index], lowered[index].find(whole))


def excerpt(text: str, around: int) -> str:
    """At most `_EXCERPT` characters of a text around a place in it, on one line."""
    start = max(0, min(around - _EXCERPT // 4, len(text) - _EXCERPT))
    cut = " ".join(text[start : start + _EXCERPT].split())
    return ("…" if start else "") + cut + ("…" if start + _EXCERPT < len(text) else "")
